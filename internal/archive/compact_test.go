package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tarOf returns the digest of the tar of a generation.
func (o *objects) tarOf(t *testing.T, m *Manifest) string {
	t.Helper()
	tar, err := m.tar(t.Context(), o.get, nil)
	check(t, err)
	defer tar.stop()
	sum := sha256.New()
	for {
		b, err := tar.next()
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(sum.Sum(nil))
		}
		check(t, err)
		sum.Write(b)
	}
}

// compact compacts generations, and returns their manifests afterwards; false: they need no compaction.
func (o *objects) compact(t *testing.T, name string, generations []*Manifest) ([]*Manifest, bool) {
	t.Helper()
	var u Usage
	for _, m := range generations {
		check(t, u.Add(m))
	}
	c := u.Compact(1 << 30)
	if c == nil {
		return generations, false
	}
	check(t, c.Store(t.Context(), name, o.get, o.put))
	after := slices.Clone(generations)
	for i, m := range generations {
		if !c.Affects(m) {
			continue
		}
		rewritten, content, err := c.Rewrite(m)
		check(t, err)
		read, err := ReadManifest(bytes.NewReader(content))
		check(t, err)
		if read.Digest() != rewritten.Digest() || c.Affects(read) {
			t.Errorf("the manifest that was returned is another one, or refers to an old pack")
		}
		after[i] = read
	}
	return after, true
}

// prune removes the packs that generations do not need.
func (o *objects) prune(generations []*Manifest) (size int64) {
	needed := map[string]bool{}
	for _, m := range generations {
		for name := range m.Packs() {
			needed[name] = true
		}
	}
	maps.DeleteFunc(o.stored, func(name string, _ []byte) bool { return IsPack(name) && !needed[name] })
	for name, b := range o.stored {
		if IsPack(name) {
			size += int64(len(b))
		}
	}
	return size
}

// Backups of a changing home are removed, and the others compacted. All that remain are the same archives as
// before, and so are later ones.
func TestCompaction(t *testing.T) {
	t.Parallel()
	home, o := t.TempDir(), newObjects()
	random := rand.New(rand.NewPCG(1, 2))
	stream := rand.NewChaCha8([32]byte{})
	write := func(name string, size int) {
		b := make([]byte, size)
		_, err := stream.Read(b)
		check(t, err)
		check(t, os.WriteFile(filepath.Join(home, name), b, 0o600))
	}
	write("large", 1<<20)
	check(t, os.Link(filepath.Join(home, "large"), filepath.Join(home, "link")))
	var kept []*Manifest
	var tars []string
	var last *Manifest
	compactions, freed := 0, int64(0)
	for i := range 20 {
		for j := range 3 {
			write(fmt.Sprint("file ", (i+j)%5), 50<<10+random.IntN(200<<10))
		}
		write(fmt.Sprint("lasting ", i), 20<<10)
		if i%8 == 0 {
			check(t, os.Truncate(filepath.Join(home, "large"), int64(1+random.IntN(5))<<17))
		}
		last = o.generation(t, home, BackupOptions{Former: last})
		kept, tars = append(kept, last), append(tars, o.tarOf(t, last))
		if i%4 != 3 {
			continue
		}
		for len(kept) > 3 {
			n := random.IntN(len(kept) - 1)
			kept, tars = slices.Delete(kept, n, n+1), slices.Delete(tars, n, n+1)
		}
		before := o.prune(kept)
		after, compacted := o.compact(t, fmt.Sprint("compaction-", i), kept)
		if compacted {
			compactions++
			kept = after
			if i%8 == 3 { // otherwise a job that runs makes the next backup with the former manifest
				last = kept[len(kept)-1]
			}
		}
		freed += before - o.prune(append(slices.Clone(kept), last))
		for j, m := range kept {
			if o.tarOf(t, m) != tars[j] {
				t.Fatalf("after compaction %d generation %d is another archive", i, j)
			}
		}
	}
	if compactions < 2 || freed < 100<<10 {
		t.Errorf("%d compactions freed %d bytes", compactions, freed)
	}
	o.same(t, kept[len(kept)-1], home)
	again, compacted := o.compact(t, "again", kept)
	if compacted && o.prune(kept) <= o.prune(again) {
		t.Error("a compaction freed nothing")
	}
}

// halfUsed returns two generations of which the second needs little of the first one's packs.
func halfUsed(t *testing.T) (o *objects, first, second *Manifest) {
	t.Helper()
	home := t.TempDir()
	o = newObjects()
	random := rand.NewChaCha8([32]byte{})
	for i := range 30 {
		b := make([]byte, 50<<10)
		_, err := random.Read(b)
		check(t, err)
		check(t, os.WriteFile(filepath.Join(home, fmt.Sprint("file", i)), b, 0o600))
	}
	first = o.generation(t, home, BackupOptions{})
	for i := range 30 {
		if i%5 > 0 {
			check(t, os.Remove(filepath.Join(home, fmt.Sprint("file", i))))
		}
	}
	return o, first, o.generation(t, home, BackupOptions{Former: first})
}

// Content that a pack has already is stored again: that pack may be damaged.
func TestCompactionTrustsNoOtherPack(t *testing.T) {
	t.Parallel()
	o, _, m := halfUsed(t)
	before := maps.Clone(o.stored)
	compacted, ok := o.compact(t, "first", []*Manifest{m})
	if !ok {
		t.Fatal("no compaction")
	}
	want := o.tarOf(t, m)
	for name, b := range o.stored {
		if strings.HasPrefix(name, packFolder) && before[name] == nil {
			b[10] ^= 1
		}
	}
	both, ok := o.compact(t, "second", []*Manifest{compacted[0], m})
	if !ok {
		t.Fatal("no second compaction")
	}
	o.prune(both)
	if o.tarOf(t, both[1]) != want {
		t.Error("another archive")
	}
}

// Damage is found before anything refers to the new packs. A store that fails, too.
func TestCompactionOfDamagedPack(t *testing.T) {
	t.Parallel()
	o, _, m := halfUsed(t)
	var u Usage
	check(t, u.Add(m))
	full := errors.New("full")
	err := u.Compact(1<<30).Store(t.Context(), "x", o.get, func(context.Context, string, []byte) error { return full })
	if !errors.Is(err, full) {
		t.Errorf("a full store: %v", err)
	}
	for name, b := range o.stored {
		if !strings.HasPrefix(name, packFolder) {
			continue
		}
		for _, at := range []int{10, len(b) - 40} { // in a frame, and in the index
			b[at] ^= 1
			if err := u.Compact(1<<30).Store(t.Context(), "x", o.get, o.put); !errors.Is(err, ErrCorrupted) {
				t.Errorf("byte %d of %s: %v", at, name, err)
			}
			b[at] ^= 1
		}
		delete(o.stored, name)
		missing := func(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
			r, err := o.get(ctx, name, offset, length)
			if err != nil {
				err = corrupted("%s is missing", name)
			}
			return r, err
		}
		if err := u.Compact(1<<30).Store(t.Context(), "x", missing, o.put); !errors.Is(err, ErrCorrupted) {
			t.Errorf("%s is missing: %v", name, err)
		}
		o.stored[name] = b
	}
}

// A pack is compacted only for enough space, and no more is moved than allowed.
func TestCompactionLimits(t *testing.T) {
	t.Parallel()
	_, first, m := halfUsed(t)
	var u Usage
	check(t, u.Add(m))
	packs, size, needed := u.Size()
	if packs == 0 || needed <= 0 || needed > size/3 {
		t.Fatalf("%d packs, %d bytes, %d needed", packs, size, needed)
	}
	if c := u.Compact(1 << 30); c.Bytes() > needed || c.Bytes() == 0 {
		t.Errorf("%d of %d bytes are moved", c.Bytes(), needed)
	}
	if c := u.Compact(needed / 2); c != nil && c.Bytes() > needed/2 {
		t.Errorf("%d bytes are moved", c.Bytes())
	}
	var all Usage
	check(t, all.Add(first))
	if c := all.Compact(1 << 30); c != nil {
		t.Errorf("of a first backup %d bytes are moved", c.Bytes())
	}
}
