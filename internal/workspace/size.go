package workspace

import "slices"

// DefaultSize is the name of the size that a workspace without one has; administrators
// cannot give another size this name.
const DefaultSize = "default"

// MaxSizeName is the longest name of a size, in bytes.
const MaxSizeName = 40

// Size is how much of its host a workspace may use. Administrators offer sizes; the values
// of the default size are those of the runtime's settings.
type Size struct {
	Name     string // lowercase letters, digits and hyphens
	NanoCPUs int64  // billionths of a core; 0: no limit
	Memory   int64  // bytes, without swap; 0: no limit
	Disk     int64  // bytes of the home; 0: no limit
}

// SizeNamed returns the value of Workspace.Size for the name of a size, as people give it.
func SizeNamed(name string) string {
	if name == DefaultSize {
		return ""
	}
	return name
}

// Cores returns the limit in cores.
func (s Size) Cores() float64 { return float64(s.NanoCPUs) / 1e9 }

// Sizes are the sizes that workspaces may have.
type Sizes struct {
	Default Size
	Offered []Size // in addition to Default
	// Unmeasured: the server does not measure homes. A size that was recorded before that never
	// changes, so it counts for nothing.
	Unmeasured bool
}

// Has reports whether a workspace may be given the size with this name; empty: the default.
func (s Sizes) Has(name string) bool { return name == "" || s.of(name) != nil }

// Of returns the size that a workspace with this name of a size gets at its next start: the
// default if the name is empty, or one that is no longer offered.
func (s Sizes) Of(name string) Size {
	if found := s.of(name); found != nil {
		return *found
	}
	return s.Default
}

// Names returns the names of all sizes, beginning with the default.
func (s Sizes) Names() []string {
	names := []string{s.Default.Name}
	for _, o := range s.Offered {
		names = append(names, o.Name)
	}
	return names
}

func (s Sizes) of(name string) *Size {
	if i := slices.IndexFunc(s.Offered, func(o Size) bool { return o.Name == name }); i >= 0 {
		return &s.Offered[i]
	}
	return nil
}
