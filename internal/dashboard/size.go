package dashboard

import (
	"strconv"

	"codehub/internal/dashboard/catalogue"
	"codehub/internal/postgres"
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

// sizeText describes a size, such as "large: 4 cores, 8.6 GB of memory, 50 GB of disk space".
func sizeText(l *catalogue.Language, s workspace.Size) string {
	cores, memory := l.T("size.cores_unlimited"), l.T("size.memory_unlimited")
	if s.NanoCPUs > 0 {
		cores = l.T("size.cores", strconv.FormatFloat(s.Cores(), 'g', 4, 64))
		if s.Cores() == 1 {
			cores = l.T("size.core")
		}
	}
	if s.Memory > 0 {
		memory = l.T("size.memory", l.Bytes(s.Memory))
	}
	disk := l.T("size.disk_unlimited")
	if s.Disk > 0 {
		disk = l.T("size.disk", l.Bytes(s.Disk))
	}
	name := s.Name
	if name == workspace.DefaultSize {
		name = l.T("size.default")
	}
	return l.T("size.text", name, cores, memory, disk)
}

// newSize returns the patch of the size, which the next start uses.
func (f *form) newSize() postgres.Patch {
	f.size()
	size := f.Value["size"]
	return postgres.Patch{Size: &size}
}

// size validates the field of the size. A size that is not offered any more may stay.
func (f *form) size() {
	f.line("size", workspace.MaxSizeName, false)
	f.Value["size"] = workspace.SizeNamed(f.Value["size"])
	if size := f.Value["size"]; !f.sizes.Has(size) && (f.W == nil || f.W.W.Size != size) {
		f.fail("size", "field.size_unknown")
	}
}
