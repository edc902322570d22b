#!/bin/sh
# A hook of xffl that mails the event: `hooks: {command: [/path/mail.sh, me@example.org]}`.
# Needs sendmail, which most mail servers bring (postfix, exim, msmtp-mta).
set -eu
{
  printf 'To: %s\nSubject: xffl: %s\nContent-Type: application/json; charset=utf-8\n\n' "$1" "$XFFL_EVENT"
  cat
} | sendmail -t
