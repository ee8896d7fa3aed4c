# shellcheck shell=sh
# Sourced by login shells and zsh: tools that users install are in their home, and gh and glab get
# their token by links in memory. The PATH of everything else has the same folders.
for dir in "$HOME/go/bin" "$HOME/.local/bin" /dev/shm/codehub/bin; do
	case ":$PATH:" in
	*":$dir:"*) ;;
	*) PATH=$dir:$PATH ;;
	esac
done
unset dir
export PATH
