package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"strings"
)

// Part is a file, link or folder of a generation, with all that the folder contains.
type Part struct {
	m     *Manifest
	name  string
	entry Entry
	// outside are the files outside of it that hard links in it are further names of.
	outside map[string]*generationEntry
}

// Part finds a part by its name; "." is the whole home. The error for an unknown name is
// fs.ErrNotExist.
func (m *Manifest) Part(name string) (*Part, error) {
	p := &Part{m: m, name: name, outside: map[string]*generationEntry{}}
	found := false
	for e, err := range p.own() {
		if err != nil {
			return nil, err
		}
		if !found {
			p.entry, found = e.public(), true
		}
		if e.kind == kindHardLink && !p.has(e.link) {
			p.outside[e.link] = nil
		}
	}
	if !found {
		return nil, fmt.Errorf("%s: %w", quoted(name), fs.ErrNotExist)
	}
	for left := len(p.outside); left > 0; {
		for e, err := range m.entries() {
			if err != nil {
				return nil, err
			}
			if file, wanted := p.outside[e.name]; wanted && file == nil {
				p.outside[e.name] = e
				if left--; left == 0 {
					break
				}
			}
		}
		if left > 0 {
			return nil, corrupted("%s has a hard link to a file that the generation does not have", quoted(name))
		}
	}
	if file := p.outside[p.entry.SameAs]; file != nil {
		p.entry = file.public()
	}
	return p, nil
}

// Entry describes the part. A further hard link is described as its file.
func (p *Part) Entry() Entry { return p.entry }

// Tar writes one file, link or folder of the generation, with all that the folder contains, as a tar.
// See Part.Tar.
func (m *Manifest) Tar(ctx context.Context, get GetRange, name string, w io.Writer) error {
	p, err := m.Part(name)
	if err != nil {
		return err
	}
	return p.Tar(ctx, get, path.Base(name), w)
}

// Tar writes the part as a tar, with the headers that an archive has. It has the name as in it; as is
// "." only for a folder. A hard link to a file outside of the part becomes that file.
func (p *Part) Tar(ctx context.Context, get GetRange, as string, w io.Writer) error {
	if as == "." && !p.entry.Mode.IsDir() {
		return fmt.Errorf("%s is not a folder: %w", quoted(p.name), fs.ErrInvalid)
	}
	t, err := p.m.tarOf(ctx, get, p.renamed(as), nil)
	if err != nil {
		return err
	}
	defer t.stop()
	t.part = true
	for {
		b, err := t.next()
		if err == nil {
			_, err = w.Write(b)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *Part) has(name string) bool {
	return p.name == "." || name == p.name || strings.HasPrefix(name, p.name) && name[len(p.name)] == '/'
}

// own yields the entries of the part, which follow one another.
func (p *Part) own() iter.Seq2[*generationEntry, error] {
	return func(yield func(*generationEntry, error) bool) {
		first, begun := 0, false
		if p.name != "." {
			var err error
			if first, err = p.m.blockOf(p.name, true); err != nil {
				yield(nil, err)
				return
			}
		}
		for e, err := range p.m.entriesFrom(first) {
			if err != nil {
				yield(nil, err)
				return
			}
			if !p.has(e.name) {
				if begun {
					return
				}
				continue
			}
			if begun = true; !yield(e, nil) {
				return
			}
		}
	}
}

// renamed yields the entries by their names in the tar.
func (p *Part) renamed(as string) iter.Seq2[*generationEntry, error] {
	rename := func(name string) string {
		switch {
		case name == p.name:
			return as
		case p.name != ".":
			name = name[len(p.name)+1:]
		}
		if as == "." {
			return name
		}
		return as + "/" + name
	}
	return func(yield func(*generationEntry, error) bool) {
		copied := map[string]string{} // names in the tar of files from outside
		for e, err := range p.own() {
			if err != nil {
				yield(nil, err)
				return
			}
			name := rename(e.name)
			if e.kind == kindHardLink {
				file := p.outside[e.link]
				switch {
				case file == nil:
					e.link = rename(e.link)
				case copied[e.link] != "":
					e.link = copied[e.link]
				default:
					copied[e.link] = name
					c := *file
					e = &c
				}
			}
			e.name = name
			if !yield(e, nil) {
				return
			}
		}
	}
}
