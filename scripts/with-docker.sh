#!/usr/bin/env bash
# Runs a command that uses Docker, in the group docker where this login does not
# have it yet.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/messages.sh
if docker_answers; then
	exec "$@"
fi
exec sg docker -c "exec $(printf '%q ' "$@")"
