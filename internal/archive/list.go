package archive

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"
)

// ErrCursor: List did not return this cursor.
var ErrCursor = errors.New("invalid cursor")

// List implements Files.
func (x *Index) List(ctx context.Context, name, cursor string, entries, bytes int) ([]Entry, string, error) {
	return list(x.Entries(ctx), name, cursor, entries, bytes)
}

func list(all iter.Seq2[Entry, error], name, cursor string, entries, bytes int) (list []Entry, next string, err error) {
	after, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return nil, "", ErrCursor
	}
	p := listPage{after: string(after), entries: entries, bytes: bytes}
	found := name == "." // the archive of a workspace that never had a home has no entries
	for e, err := range all {
		if err != nil {
			return nil, "", err
		}
		self := e.Name == name
		found = found || self
		if self && !e.Mode.IsDir() || !self && path.Dir(e.Name) == name {
			p.add(e)
		}
	}
	if !found {
		return nil, "", fmt.Errorf("%s: %w", quoted(name), fs.ErrNotExist)
	}
	if p.cut(); p.more {
		next = base64.RawURLEncoding.EncodeToString([]byte(place(p.list[len(p.list)-1])))
	}
	return p.list, next, nil
}

// place orders the entries of a folder.
func place(e Entry) string {
	if e.Mode.IsDir() {
		return "0" + path.Base(e.Name)
	}
	return "1" + path.Base(e.Name)
}

// listPage collects the first entries after a place.
type listPage struct {
	after          string
	entries, bytes int // limits
	list           []Entry
	names          int    // bytes of the names in list
	more           bool   // entries after those of list were dropped
	last           string // place of the last one in list then
}

func (p *listPage) add(e Entry) {
	at := place(e)
	if at <= p.after || p.more && at > p.last {
		return
	}
	p.list = append(p.list, e)
	p.names += namesOf(e)
	if len(p.list) > 2*p.entries || p.names > 2*p.bytes {
		p.cut()
	}
}

// cut drops the entries beyond the limits.
func (p *listPage) cut() {
	slices.SortFunc(p.list, func(a, b Entry) int { return strings.Compare(place(a), place(b)) })
	n := 0
	p.names = 0
	for n < min(p.entries, len(p.list)) && p.names <= p.bytes {
		p.names += namesOf(p.list[n])
		n++
	}
	if n < len(p.list) {
		clear(p.list[n:])
		p.list, p.more, p.last = p.list[:n], true, place(p.list[n-1])
	}
}

func namesOf(e Entry) int { return len(e.Name) + len(e.Link) + len(e.SameAs) }
