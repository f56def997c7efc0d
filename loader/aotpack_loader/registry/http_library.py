"""The HTTP library of registries, which an extra installs. Modules of registries import it from here.

Raises:
    RegistryError: it is not installed.
"""

from __future__ import annotations

from ..errors import RegistryError

try:
    import urllib3 as urllib3
    from urllib3.connection import HTTPConnection as HTTPConnection
    from urllib3.connection import HTTPSConnection as HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool as HTTPConnectionPool
    from urllib3.connectionpool import HTTPSConnectionPool as HTTPSConnectionPool
except ImportError as error:
    raise RegistryError(
        "Registries need the package urllib3, which is not installed.", hint="Run `pip install 'aotpack-loader[registry]'`."
    ) from error
