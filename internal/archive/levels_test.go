package archive

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
)

// chosen runs frames through levels, in turn of these sizes before and
// after, and returns how many of each went to the faster encoder.
func chosen(frames int, sizes ...[2]int) []int {
	var l levels
	count := make([]int, len(sizes))
	for i := range frames {
		k := i % len(sizes)
		f := frame{in: make([]byte, sizes[k][0]), out: make([]byte, sizes[k][1]), faster: l.faster(int64(i))}
		if f.faster {
			count[k]++
		}
		l.account(&f)
	}
	return count
}

func TestLevels(t *testing.T) {
	t.Parallel()
	text, random := [2]int{4000, 1000}, [2]int{4000, 4000}
	if n := chosen(1000, text); n[0] < 490 || n[0] > 510 {
		t.Errorf("of 1000 frames of text %d went to the faster encoder, not half", n[0])
	}
	if n := chosen(1000, text, random); n[0] < 490 {
		t.Errorf("of 500 frames of text next to as much incompressible data, %d used the faster encoder, not all", n[0])
	}
	n := chosen(700, text, text, text, text, text, text, random)
	if fast := n[0] + n[1] + n[2] + n[3] + n[4] + n[5]; fast < 480 || fast > 520 {
		t.Errorf("of 600 frames of text next to two thirds as much incompressible data, %d used the faster encoder, not five sixths", fast)
	}
}

// The archive does not depend on the number of processors.
func TestArchiveDoesNotDependOnWorkers(t *testing.T) {
	t.Parallel()
	random := randomBytes(64 << 10)
	text := bytes.Repeat(random[:3000], 30)[:64<<10]
	pack := func(workers int) []byte {
		var out bytesWriter
		c, err := newCompressorOf(context.Background(), &out, workers)
		check(t, err)
		for i := range 200 {
			content := text[i*16:]
			if i/10%3 == 1 {
				content = random[i*16:]
			}
			_, err := c.Write(content)
			check(t, err)
			c.flush()
		}
		check(t, c.stop())
		return out
	}
	one := pack(1)
	for _, n := range []int{2, 3, maxWorkers} {
		if !bytes.Equal(pack(n), one) {
			t.Errorf("the archive of %d workers differs from that of one", n)
		}
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}
