# shellcheck shell=sh
# Sourced by login shells and zsh: tools that users install are in their home, and codehub's links
# that start gh and glab are in memory. All other programs have the same folders on their PATH, from
# the image and from codehub.
for dir in "$HOME/go/bin" "$HOME/.local/bin" /dev/shm/codehub/bin; do
	case ":$PATH:" in
	*":$dir:"*) ;;
	*) PATH=$dir:$PATH ;;
	esac
done
unset dir
export PATH
