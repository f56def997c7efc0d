"""Makes the device known to a process that imports this."""

from . import register

register()
