package main

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"
)

// code yields the same content in every run and different content for each
// copy.
func TestCode(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("if err != nil { return err }\n"), 1000)
	read := func(at, copy int) []byte {
		b, err := io.ReadAll(io.LimitReader(&code{text: text, at: at, copy: copy}, 100_000))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	first := read(7, 1)
	if len(first) != 100_000 {
		t.Errorf("the content ends after %d bytes", len(first))
	}
	if !bytes.Equal(read(7, 1), first) {
		t.Error("the same copy has different content the second time")
	}
	if bytes.Equal(read(7, 2), first) || bytes.Equal(read(7, 2)[:200], first[:200]) {
		t.Error("two copies have the same content")
	}
}

func TestUsageOfAProcess(t *testing.T) {
	t.Parallel()
	peak, err := peakMemory(os.Getpid())
	if err != nil || peak < 1<<20 || peak > 1<<40 {
		t.Errorf("peak of this process: %d, %v", peak, err)
	}
	if _, err := statusField("Name:\tcat\nVmHWM:\t 12 kB\n", "RssFile:"); err == nil {
		t.Error("a missing field was read")
	}
	if n, err := statusField("Name:\tcat\nVmHWM:\t 12 kB\n", "VmHWM:"); err != nil || n != 12<<10 {
		t.Errorf("12 kB are read as %d, %v", n, err)
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	if m := median([]time.Duration{9, 1, 5}); m != 5 {
		t.Errorf("median is %d", m)
	}
}
