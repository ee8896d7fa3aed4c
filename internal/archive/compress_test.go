package archive

import (
	"bytes"
	"context"
	"testing"
)

// compressFrames compresses 200 frames of 64 KiB, those for which random is true of content that
// does not compress.
func compressFrames(t *testing.T, workers int, random func(i int) bool) (*compressor, []byte) {
	t.Helper()
	noise := randomBytes(64 << 10)
	text := bytes.Repeat(noise[:3000], 30)[:64<<10]
	var out bytesWriter
	c, err := newCompressorOf(context.Background(), &out, workers)
	check(t, err)
	for i := range 200 {
		content := text[i*16:]
		if random(i) {
			content = noise[i*16:]
		}
		_, err := c.Write(content)
		check(t, err)
		c.flush()
	}
	check(t, c.stop())
	return c, out
}

func TestLevels(t *testing.T) {
	t.Parallel()
	c, _ := compressFrames(t, 2, func(int) bool { return false })
	if c.fast < c.all*4/10 || c.fast > c.all*6/10 {
		t.Errorf("of %d bytes of text, %d are of the faster encoder, not half", c.all, c.fast)
	}
	c, out := compressFrames(t, 2, func(i int) bool { return i%2 == 0 })
	noise := 100 * (64<<10 - 1600)
	if text := len(out) - noise; c.fast < text*9/10 {
		t.Errorf("of about %d bytes of text next to random content, %d are of the faster encoder, not all", text, c.fast)
	}
}

// The archive does not depend on the number of processors.
func TestArchiveDoesNotDependOnWorkers(t *testing.T) {
	t.Parallel()
	third := func(i int) bool { return i/10%3 == 1 }
	_, one := compressFrames(t, 1, third)
	for _, n := range []int{2, 3, maxWorkers} {
		if _, got := compressFrames(t, n, third); !bytes.Equal(got, one) {
			t.Errorf("the archive of %d workers differs from that of one", n)
		}
	}
}
