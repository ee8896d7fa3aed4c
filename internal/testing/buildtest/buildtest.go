// Package buildtest has a program for tests that makes images as images/build.sh does.
package buildtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// Image is an image that a Program makes, as a copy of the image From.
type Image struct{ Name, Ref, From string }

// Program is a shell script that makes images. Each image waits in its first step until the
// test lets it go on.
type Program struct {
	Path string

	t   *testing.T
	dir string
}

const script = `#!/bin/sh
dir=$(dirname "$0")
name=$2
case $1 in
list) cut -f 1,2 "$dir/list" ;;
make)
	echo $$ >"$dir/$name.pid"
	sleep 600 & # must not outlive the script
	echo "step 1/2 fetch the parts of $name"
	while [ ! -e "$dir/$name.finish" ] && [ ! -e "$dir/$name.fail" ]; do sleep 0.02; done
	echo "step 2/2 build $name"
	if [ -e "$dir/$name.fail" ]; then
		rm "$dir/$name.fail"
		echo 'Step 9/9 : is not one' >&2
		echo "no route to the host of $name" >&2
		exit 3
	fi
	from=$(awk -F '\t' -v name="$name" '$1 == name { print $3 }' "$dir/list")
	ref=$(awk -F '\t' -v name="$name" '$1 == name { print $2 }' "$dir/list")
	[ -z "$from" ] || docker tag "$from" "$ref" ;;
*) exit 2 ;;
esac
`

// New returns a program for the images.
func New(t *testing.T, images ...Image) *Program {
	t.Helper()
	dir := t.TempDir()
	p := &Program{Path: filepath.Join(dir, "build.sh"), t: t, dir: dir}
	if err := os.WriteFile(p.Path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var list strings.Builder
	for _, i := range images {
		fmt.Fprintf(&list, "%s\t%s\t%s\n", i.Name, i.Ref, i.From)
	}
	p.write("list", list.String())
	return p
}

// Finish lets the build of an image end, now and in later attempts.
func (p *Program) Finish(name string) { p.t.Helper(); p.write(name+".finish", "") }

// Fail lets the next attempt to build an image fail.
func (p *Program) Fail(name string) { p.t.Helper(); p.write(name+".fail", "") }

// Group returns the process group of the build of an image.
func (p *Program) Group(name string) int {
	p.t.Helper()
	var pid int
	text, err := os.ReadFile(filepath.Join(p.dir, name+".pid"))
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return pid
}

func (p *Program) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// Ref returns a reference that names no image. What it names later is removed with the test.
func Ref(t *testing.T, name string) string {
	t.Helper()
	ref := "localhost/codehub-test-" + name + ":" + uuid.NewString()
	t.Cleanup(func() {
		_ = exec.CommandContext(context.Background(), "docker", "image", "rm", "--force", ref).Run()
	})
	return ref
}

// Variant returns another image with the content of from.
func Variant(t *testing.T, from string) string {
	t.Helper()
	docker := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "docker", args...).Output()
		if err != nil {
			t.Fatalf("docker %s: %v", args[0], err)
		}
		return strings.TrimSpace(string(out))
	}
	ref := Ref(t, "variant")
	container := docker("create", from)
	defer docker("rm", container)
	docker("commit", "--change", "LABEL variant="+ref, container, ref)
	return ref
}
