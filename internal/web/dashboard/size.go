package dashboard

import (
	"strconv"
	"strings"

	"codehub/internal/postgres"
	"codehub/internal/web/dashboard/catalogue"
	"codehub/internal/workspace"
)

// sizeChoice is a size to choose from; its Value is empty for the default one.
type sizeChoice struct{ Value, Text string }

// sizeChoices lists the sizes; none if administrators offer only one.
func (d *Dashboard) sizeChoices(l *catalogue.Language) []sizeChoice {
	if len(d.Sizes.Offered) == 0 {
		return nil
	}
	choices := []sizeChoice{{"", sizeText(l, d.Sizes.Default)}}
	for _, s := range d.Sizes.Offered {
		choices = append(choices, sizeChoice{s.Name, sizeText(l, s)})
	}
	return choices
}

// sizeText describes a size, such as "large: 4 cores, 8 GiB memory, 50 GiB disk".
func sizeText(l *catalogue.Language, s workspace.Size) string {
	cores, memory := l.T("size.cores_unlimited"), l.T("size.memory_unlimited")
	if s.NanoCPUs > 0 {
		cores = l.T("size.cores", strconv.FormatFloat(s.Cores(), 'g', 4, 64))
		if s.Cores() == 1 {
			cores = l.T("size.core")
		}
	}
	if s.Memory > 0 {
		memory = l.T("size.memory", unbroken(l.Bytes(s.Memory)))
	}
	disk := l.T("size.disk_unlimited")
	if s.Disk > 0 {
		disk = l.T("size.disk", unbroken(l.Bytes(s.Disk)))
	}
	name := s.Name
	if name == workspace.DefaultSize {
		name = l.T("size.default")
	}
	return l.T("size.text", name, cores, memory, disk)
}

// unbroken keeps a number and its unit on one line.
func unbroken(s string) string { return strings.ReplaceAll(s, " ", "\u00a0") }

// newSize returns the size in the form, empty for the default one. The next start uses it.
func (f *form) newSize() string {
	f.size()
	return f.Value["size"]
}

// sizePatch is the patch of a form about the size alone.
func (f *form) sizePatch() postgres.Patch { return postgres.Patch{Size: new(f.newSize())} }

// size validates the field of the size. A size that is not offered any more may stay.
func (f *form) size() {
	f.line("size", workspace.MaxSizeName, false)
	f.Value["size"] = workspace.SizeNamed(f.Value["size"])
	var present string
	switch {
	case f.W != nil:
		present = f.W.W.Size
	case f.Any != nil:
		present = f.Any.Size
	}
	if size := f.Value["size"]; !f.sizes.Has(size) && size != present {
		f.fail("size", "field.size_unknown")
	}
}
