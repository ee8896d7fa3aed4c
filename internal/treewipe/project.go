package treewipe

import (
	"os"

	"codehub/internal/fsxattr"
)

// endInheritance clears the flag fsxattr.ProjectInherit of a folder, which the owner of the folder
// can set. It returns false if the flag is not set or cannot be cleared, in a container for example.
func endInheritance(dir *os.File) bool {
	a, err := fsxattr.Get(dir)
	if err != nil || a.Flags&fsxattr.ProjectInherit == 0 {
		return false
	}
	a.Flags &^= fsxattr.ProjectInherit
	return fsxattr.Set(dir, a) == nil
}
