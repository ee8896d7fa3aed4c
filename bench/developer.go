package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// developer changes a home like a developer who works in it. The same seed makes the same changes.
type developer struct {
	home    string
	text    []byte
	rnd     *rand.Rand
	files   []string // source code, in a repository of git
	today   []string // those that are edited today
	objects [][]byte // of the last build
	edits   int
}

const (
	fileBytes   = 18_400 // average size of a file of source code
	dbPage      = 4 << 10
	dbPages     = 4096 // of the database
	editedFiles = 30   // each hour
)

// newDeveloper makes a home with so many files of source code.
func newDeveloper(ctx context.Context, home string, text []byte, files int) (*developer, error) {
	d := &developer{home: home, text: text, rnd: rand.New(rand.NewPCG(1, 2))}
	for i := range files {
		name := filepath.Join(home, "project", fmt.Sprintf("src/pkg%03d/file%d.go", i/50, i))
		d.files = append(d.files, name)
		if err := d.write(name, d.source(fileBytes)); err != nil {
			return nil, err
		}
	}
	for i := range 60 {
		if err := d.install(i); err != nil {
			return nil, err
		}
	}
	database := slices.Clone(d.text[:dbPages*dbPage])
	for range 20 {
		d.objects = append(d.objects, d.object())
	}
	if err := errors.Join(d.write(d.in("data/app.sqlite"), database), d.build()); err != nil {
		return nil, err
	}
	return d, d.git(ctx, time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC), "init -q", "add .", "commit -qm first", "gc -q")
}

func (d *developer) in(name string) string { return filepath.Join(d.home, name) }

// write replaces a file like an editor: it writes another and renames it.
func (d *developer) write(name string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(name+"~", content, 0o644), os.Rename(name+"~", name))
}

// source returns source code of this size on average.
func (d *developer) source(average float64) []byte {
	n := int(d.rnd.ExpFloat64()*average) % (1 << 20)
	at := d.rnd.IntN(len(d.text) - n)
	return d.text[at : at+n]
}

// object returns machine code, as far as a compressor is concerned: half of it is new.
func (d *developer) object() []byte {
	b := slices.Clone(d.source(300_000))
	for i := 0; i+8 <= len(b); i += 8 {
		for j := range b[i : i+4] {
			b[i+j] = byte(d.rnd.Uint32())
		}
	}
	return b
}

// git runs commands on the repository of the source code.
func (d *developer) git(ctx context.Context, at time.Time, commands ...string) error {
	for _, command := range commands {
		cmd := exec.CommandContext(ctx, "bash", "-c", "git -c gc.auto=0 -c pack.threads=1 -c user.name=dev -c user.email=dev@example.com "+command)
		date := at.Format(time.RFC3339)
		cmd.Dir, cmd.Env = d.in("project"), append(os.Environ(), "GIT_AUTHOR_DATE="+date, "GIT_COMMITTER_DATE="+date)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", command, err, out)
		}
	}
	return nil
}

// install installs a version of a dependency: some 40 files with about 1 MB. Most of the files of two versions differ.
func (d *developer) install(number int) error {
	dir := d.in(fmt.Sprintf("project-modules/dep%02d", number))
	for i := range 40 {
		name := filepath.Join(dir, fmt.Sprintf("lib/module%02d.js", i))
		content := d.source(25_000)
		if old, err := os.ReadFile(name); err == nil && i%3 == 0 {
			content = old
		}
		if err := d.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

// build compiles some of the objects again and links all of them.
func (d *developer) build() error {
	for range 3 {
		d.objects[d.rnd.IntN(len(d.objects))] = d.object()
	}
	for i, o := range d.objects {
		if err := d.write(d.in(fmt.Sprintf("build/obj%02d.o", i)), o); err != nil {
			return err
		}
	}
	return d.write(d.in("build/app"), slices.Concat(d.objects...))
}

// morning chooses the packages that are edited on a day, updates dependencies and, once a week, collects garbage of git.
func (d *developer) morning(ctx context.Context, day time.Time) error {
	d.today = nil
	for range 3 {
		at := d.rnd.IntN(len(d.files)/50+1) * 50
		d.today = append(d.today, d.files[min(at, len(d.files)-1):min(at+50, len(d.files))]...)
	}
	for range 3 {
		if err := d.install(d.rnd.IntN(60)); err != nil {
			return err
		}
	}
	if day.Weekday() != time.Monday {
		return nil
	}
	log := d.in("var/app.log")
	if err := os.Rename(log, log+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return d.git(ctx, day, "gc -q")
}

// hour does an hour's work.
func (d *developer) hour(ctx context.Context, at time.Time) error {
	for i := range editedFiles {
		name := d.today[d.rnd.IntN(len(d.today))]
		if i%6 == 0 {
			name = d.files[d.rnd.IntN(len(d.files))]
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		from := d.rnd.IntN(len(content) + 1)
		to := from + d.rnd.IntN(min(400, len(content)-from)+1)
		d.edits++
		if err := d.write(name, slices.Concat(content[:from], fmt.Appendf(nil, "// edit %d\n", d.edits), d.source(300), content[to:])); err != nil {
			return err
		}
	}
	if err := errors.Join(d.git(ctx, at, "add .", "commit -qm work"), d.build(), d.log(at)); err != nil {
		return err
	}
	return d.database()
}

// log appends some 300 KB to a log.
func (d *developer) log(at time.Time) error {
	var b bytes.Buffer
	for i := range 3000 {
		fmt.Fprintf(&b, "%s INFO request served method=GET path=/api/items/%d status=200 duration=%dus id=%016x\n",
			at.Add(time.Duration(i)*time.Second).Format(time.RFC3339), d.rnd.IntN(1000), d.rnd.IntN(100_000), d.rnd.Uint64())
	}
	name := d.in("var/app.log")
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	return errors.Join(err, f.Close())
}

// database writes pages of a database in place, most of them near its end.
func (d *developer) database() error {
	f, err := os.OpenFile(d.in("data/app.sqlite"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	for range 60 {
		n := dbPages - 1 - int(d.rnd.ExpFloat64()*dbPages/16)%dbPages
		at := d.rnd.IntN(len(d.text) - dbPage)
		_, wrote := f.WriteAt(d.text[at:at+dbPage], int64(n)*dbPage)
		err = errors.Join(err, wrote)
	}
	return errors.Join(err, f.Close())
}
