package imagebuild_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"codehub/internal/runtime/imagebuild"
	"codehub/internal/testing/buildtest"
)

func open(t *testing.T, program string) *imagebuild.Builder {
	t.Helper()
	b, err := imagebuild.New(t.Context(), imagebuild.Config{Program: program, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// runs runs b until the returned function is called, which returns when Run has.
func runs(t *testing.T, b *imagebuild.Builder) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); b.Run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// await waits until the images are as ok wants, by the announcements of b alone.
func await(t *testing.T, b *imagebuild.Builder, ok func([]imagebuild.Image) bool) []imagebuild.Image {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		changed := b.Changed()
		now := b.Images()
		if ok(now) {
			return now
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the images are %+v", now)
		}
	}
}

func in(n int, s imagebuild.State) func([]imagebuild.Image) bool {
	return func(i []imagebuild.Image) bool { return i[n].State == s }
}

func three(t *testing.T) *buildtest.Program {
	return buildtest.New(t, buildtest.Image{Name: "ide", Ref: "codehub/ide"}, buildtest.Image{Name: "slim", Ref: "codehub/workspace-slim:latest"}, buildtest.Image{Name: "full", Ref: "codehub/workspace:latest"})
}

// The images are made one after the other, a failure does not keep the others from being made,
// and a retry makes the failed one again.
func TestBuilderMakesImages(t *testing.T) {
	t.Parallel()
	p := three(t)
	b := open(t, p.Path)
	if got := b.Images(); len(got) != 3 || got[0].State != imagebuild.Waiting || got[2].Ref != "codehub/workspace:latest" {
		t.Fatalf("the images before Run are %+v", got)
	}
	runs(t, b)
	got := await(t, b, func(i []imagebuild.Image) bool { return i[0].Step == 1 })
	if got[0].State != imagebuild.Making || got[0].Steps != 2 || got[0].Text != "fetch the parts of ide" || got[1].State != imagebuild.Waiting {
		t.Errorf("the images in the first step are %+v", got)
	}
	if now, ok := b.Current(); !ok || now.Name != "ide" {
		t.Errorf("Current is %+v", now)
	}
	if i, _ := b.Retry("ide"); i.State != imagebuild.Making {
		t.Errorf("a retry while it is made gives %+v", i)
	}
	p.Fail("slim")
	p.Finish("ide")
	got = await(t, b, in(2, imagebuild.Making))
	if got[0].State != imagebuild.Ready || got[0].Began.IsZero() || got[0].Ended.Before(got[0].Began) || len(got[0].Log) > 0 {
		t.Errorf("the finished image is %+v", got[0])
	}
	failed := got[1]
	if failed.State != imagebuild.Failed || failed.Err != "exit status 3" || failed.Step != 2 || !slices.Contains(failed.Log, "no route to the host of slim") {
		t.Errorf("the failed image is %+v", failed)
	}
	if i, found := b.Retry("slim"); !found || i.State != imagebuild.Waiting || i.Err != "" {
		t.Errorf("Retry gives %+v, %t", i, found)
	}
	if _, found := b.Retry("none"); found {
		t.Error("an unknown image is found")
	}
	p.Finish("slim")
	p.Finish("full")
	await(t, b, func(i []imagebuild.Image) bool {
		return !slices.ContainsFunc(i, func(i imagebuild.Image) bool { return i.State != imagebuild.Ready })
	})
}

// members returns the processes of a group that have not ended.
func members(t *testing.T, group int) (list []string) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		t.Fatalf("no processes: %v", err)
	}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest) // state, parent, group
		if fields[0] != "Z" && fields[2] == strconv.Itoa(group) {
			list = append(list, string(text))
		}
	}
	return list
}

func TestBuilderLeavesNoProcess(t *testing.T) {
	t.Parallel()
	p := three(t)
	b := open(t, p.Path)
	stop := runs(t, b)
	await(t, b, func(i []imagebuild.Image) bool { return i[0].Step == 1 })
	group := p.Group("ide")
	if len(members(t, group)) < 2 {
		t.Fatal("the program has no process that could be left")
	}
	stop()
	if left := members(t, group); len(left) > 0 {
		t.Errorf("processes after the end: %q", left)
	}
	if got := b.Images()[0]; got.State == imagebuild.Failed {
		t.Errorf("the end of the server counts as a failure: %+v", got)
	}
}

func TestInterim(t *testing.T) {
	t.Parallel()
	p := three(t)
	b := open(t, p.Path)
	for ref, want := range map[string]string{
		"codehub/workspace": "codehub/workspace-slim:latest", "docker.io/codehub/workspace:latest": "codehub/workspace-slim:latest",
		"codehub/workspace-slim": "", "codehub/ide": "", "python": "",
	} {
		if got := b.Interim(ref); got != want {
			t.Errorf("Interim(%q) is %q, want %q", ref, got, want)
		}
	}
	for _, name := range []string{"ide", "slim", "full"} {
		p.Finish(name)
	}
	runs(t, b)
	await(t, b, in(2, imagebuild.Ready))
	if got := b.Interim("codehub/workspace"); got != "" {
		t.Errorf("Interim of the finished image is %q", got)
	}
}

func TestNoBuilder(t *testing.T) {
	t.Parallel()
	var b *imagebuild.Builder
	b.Run(t.Context())
	_, found := b.Find("codehub/ide")
	_, retried := b.Retry("ide")
	if found || retried || b.Interim("codehub/workspace") != "" || b.Images() != nil || b.Changed() != nil {
		t.Error("a nil Builder has images")
	}
}

func TestWrongLists(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"":                                   "lists no image",
		`ide codehub/ide`:                    "no name and image",
		"ide\tcodehub/ide\nide\tcodehub/ide": "listed twice",
		"'; echo broken >&2; exit 4; '":      "exit status 4: broken",
	} {
		program := filepath.Join(t.TempDir(), "build.sh")
		// A process that another test starts meanwhile would have the file open, too, and the
		// system runs no file that is open for writing.
		syscall.ForkLock.RLock()
		err := os.WriteFile(program, []byte("#!/bin/sh\necho '"+out+"'\n"), 0o755)
		syscall.ForkLock.RUnlock()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := imagebuild.New(t.Context(), imagebuild.Config{Program: program}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the list %q: %v, want %q", out, err, want)
		}
	}
}
