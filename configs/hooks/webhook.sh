#!/bin/sh
# A hook of xffl that posts the event as JSON: `hooks: {command: [/path/webhook.sh, /path/curl.conf]}`.
#
# curl.conf has one line, url = "https://...". The address often holds a token: it stands neither in xffl.yaml nor in the list of
# processes.
set -eu
exec curl --silent --show-error --fail --max-time 20 --output /dev/null --header 'Content-Type: application/json' --data-binary @- --config "$1"
