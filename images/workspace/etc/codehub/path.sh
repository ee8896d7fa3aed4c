# shellcheck shell=sh
# Sourced by login shells and zsh: tools that users install are in their home. The
# image's PATH has the same folders for everything else.
for dir in "$HOME/go/bin" "$HOME/.local/bin"; do
	case ":$PATH:" in
	*":$dir:"*) ;;
	*) PATH=$dir:$PATH ;;
	esac
done
unset dir
export PATH
