package archive

import (
	"context"
	"io"
	"iter"
)

// Files are the files of an archive or of a generation. They may be used concurrently.
type Files interface {
	// List returns a page of a folder's entries: its folders, then the others, each in the order of
	// their names. It ends after so many entries, or the first one with which their paths and targets
	// exceed so many bytes: those of one entry may have 512 KiB. next is the cursor of the following
	// page, "" on the last; the cursor of the first page is "". The list of another entry is that entry.
	// The error for an unknown name is fs.ErrNotExist.
	List(ctx context.Context, name, cursor string, entries, bytes int) (list []Entry, next string, err error)
	// Open returns a file's content and its entry; of a further hard link, those of the file. The error
	// of another kind of entry is fs.ErrInvalid, and that of an unknown name fs.ErrNotExist.
	Open(ctx context.Context, name string) (io.ReadCloser, Entry, error)
}

var (
	_ Files = (*Index)(nil)
	_ Files = generationFiles{}
)

// Files returns the files of the generation, whose packs get reads.
func (m *Manifest) Files(get GetRange) Files { return generationFiles{m, get} }

type generationFiles struct {
	m   *Manifest
	get GetRange
}

func (f generationFiles) List(ctx context.Context, name, cursor string, entries, bytes int) ([]Entry, string, error) {
	p := &Part{m: f.m, name: name}
	return list(withContext(ctx, public(p.own())), name, cursor, entries, bytes)
}

func (f generationFiles) Open(ctx context.Context, name string) (io.ReadCloser, Entry, error) {
	return f.m.Open(ctx, f.get, name)
}

// withContext ends the entries with an error when the context ends.
func withContext(ctx context.Context, entries iter.Seq2[Entry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range entries {
			if ctx.Err() != nil {
				e, err = Entry{}, context.Cause(ctx)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}
