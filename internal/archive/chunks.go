package archive

import (
	"io"
	"math/bits"
	"math/rand/v2"
)

const (
	// wholeFile is the largest size of a file that is one chunk.
	wholeFile = 1 << 20
	minChunk  = 256 << 10
	maxChunk  = frameSize
	// chunkBits makes chunks 512 KiB larger than minChunk on average.
	chunkBits = 19
)

// cutter cuts content into chunks where the content says so, so that an insertion changes only
// the chunks around it. Readers of a backup need not know where it cuts.
type cutter struct {
	gear [256]uint64
	buf  []byte // of 2 × maxChunk, for the content that is being cut
}

func newCutter() *cutter {
	c := &cutter{}
	random := rand.NewChaCha8([32]byte([]byte("codehub content-defined chunks 1")))
	for i := range c.gear {
		c.gear[i] = random.Uint64()
	}
	return c
}

// cut returns the length of the first chunk of b.
func (c *cutter) cut(b []byte) int {
	if len(b) <= minChunk {
		return len(b)
	}
	b = b[:min(len(b), maxChunk)]
	var h uint64
	for i, x := range b[minChunk:] {
		// The top bits depend on the last 64 bytes.
		if h = h<<1 + c.gear[x]; bits.LeadingZeros64(h) >= chunkBits {
			return minChunk + i + 1
		}
	}
	return len(b)
}

// split calls add for each chunk of a content of this size, which may end earlier.
func (c *cutter) split(r io.Reader, size int64, add func(chunk []byte) error) error {
	if c.buf == nil {
		c.buf = make([]byte, 2*maxChunk)
	}
	held, ended := 0, false
	for {
		for !ended && held < maxChunk {
			n, err := io.ReadFull(r, c.buf[held:])
			held += n
			ended = err == io.EOF || err == io.ErrUnexpectedEOF
			if err != nil && !ended {
				return err
			}
		}
		for at := 0; ; {
			if left := held - at; left == 0 && ended {
				return nil
			} else if left < maxChunk && !ended {
				held = copy(c.buf, c.buf[at:held])
				break
			}
			n := c.cut(c.buf[at:held])
			if size <= wholeFile {
				n = held - at
			}
			if err := add(c.buf[at : at+n]); err != nil {
				return err
			}
			at += n
		}
	}
}
