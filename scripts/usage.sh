# Sourced by scripts whose directory is the checkout: their help is the comment at their top.
usage() {
    sed --quiet '2,/^set /{/^#/s/^# \?//p}' "scripts/${0##*/}" >&2
    exit 2
}
