package disk

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"
)

// The part of the FUSE protocol that one regular file needs
// (include/uapi/linux/fuse.h).
const (
	opForget, opGetattr, opSetattr, opOpen, opRead, opWrite = 2, 3, 4, 14, 15, 16
	opStatfs, opRelease, opFsync, opFlush, opInit           = 17, 18, 20, 25, 26
	opInterrupt, opDestroy, opBatchForget                   = 36, 38, 42

	inHeader, outHeader = 40, 16
	rootID              = 1
	maxWrite            = 1 << 20

	flagAsyncRead, flagBigWrites, flagAsyncDIO, flagMaxPages = 1 << 0, 1 << 5, 1 << 15, 1 << 22
	openDirectIO, openParallelWrites                         = 1 << 0, 1 << 6
)

var le = binary.LittleEndian

// serve answers requests until the FUSE connection ends.
func (d *Disk) serve() {
	in := make([]byte, maxWrite+64<<10)
	out := make([]byte, outHeader+maxWrite+page)
	for {
		n, err := unix.Read(d.fuse, in)
		switch err {
		case nil:
		case unix.EINTR, unix.EAGAIN, unix.ENOENT:
			continue
		default: // ENODEV: unmounted or aborted
			return
		}
		if n < inHeader {
			return
		}
		op, unique := le.Uint32(in[4:]), in[8:16]
		if op == opForget || op == opBatchForget || op == opInterrupt {
			continue
		}
		m, errno := d.answer(op, in[inHeader:n], out[outHeader:])
		if errno != 0 {
			m = 0
		}
		le.PutUint32(out, uint32(outHeader+m))
		le.PutUint32(out[4:], uint32(-int32(errno)))
		copy(out[8:16], unique)
		_, _ = unix.Write(d.fuse, out[:outHeader+m]) // ENOENT: the request was interrupted
		if op == opDestroy {
			return
		}
	}
}

// answer executes one request and returns the length of its answer.
func (d *Disk) answer(op uint32, in, out []byte) (int, syscall.Errno) {
	switch op {
	case opInit:
		clear(out[:64])
		le.PutUint32(out, 7)
		le.PutUint32(out[4:], 36)
		le.PutUint32(out[8:], le.Uint32(in[8:]))
		le.PutUint32(out[12:], le.Uint32(in[12:])&(flagAsyncRead|flagBigWrites|flagAsyncDIO|flagMaxPages))
		le.PutUint16(out[16:], 64)
		le.PutUint16(out[18:], 48)
		le.PutUint32(out[20:], maxWrite)
		le.PutUint32(out[24:], 1)
		le.PutUint16(out[28:], maxWrite/page)
		return 64, 0
	case opGetattr, opSetattr:
		return d.attributes(out), 0
	case opOpen:
		d.opened(1)
		clear(out[:16])
		le.PutUint32(out[8:], openDirectIO|openParallelWrites)
		return 16, 0
	case opRead:
		return d.read(int64(le.Uint64(in[8:])), out[:le.Uint32(in[16:])])
	case opWrite:
		size := le.Uint32(in[16:])
		if errno := d.write(int64(le.Uint64(in[8:])), in[40:40+size]); errno != 0 {
			return 0, errno
		}
		clear(out[:8])
		le.PutUint32(out, size)
		return 8, 0
	case opFsync:
		return 0, d.flush()
	case opFlush, opDestroy:
		return 0, 0
	case opRelease:
		d.opened(-1)
		return 0, 0
	case opStatfs:
		clear(out[:80])
		le.PutUint32(out[40:], page)
		le.PutUint32(out[44:], 255)
		return 80, 0
	}
	return 0, unix.ENOSYS
}

func (d *Disk) attributes(out []byte) int {
	clear(out[:104])
	le.PutUint64(out, 3600) // cached: they do not change
	le.PutUint64(out[16:], rootID)
	le.PutUint64(out[24:], uint64(d.size))
	le.PutUint64(out[32:], uint64(d.size/512))
	le.PutUint32(out[76:], unix.S_IFREG|0o600)
	le.PutUint32(out[80:], 1)
	le.PutUint32(out[96:], page)
	return 104
}

func (d *Disk) read(at int64, p []byte) (int, syscall.Errno) {
	d.mu.Lock()
	off := d.off
	d.mu.Unlock()
	if off {
		return 0, unix.EIO
	}
	n, _ := d.image.ReadAt(p, at) // a read at the end of the image is short
	return n, 0
}

func (d *Disk) write(at int64, p []byte) syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return unix.EIO
	}
	first, end := at/page*page, (at+int64(len(p))+page-1)/page*page
	old := make([]byte, end-first)
	if n, err := d.image.ReadAt(old, first); n < len(old) && err != nil && first+int64(n) < d.size {
		return unix.EIO
	}
	for a := first; a < end; a += page {
		d.undo = append(d.undo, version{a, old[a-first : a-first+page]})
	}
	if _, err := d.image.WriteAt(p, at); err != nil {
		return unix.EIO
	}
	d.writes++
	return 0
}

// flush makes all answered writes durable.
func (d *Disk) flush() syscall.Errno {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return unix.EIO
	}
	d.undo = nil
	d.flushes++
	return 0
}

func (d *Disk) opened(by int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opens += by
}
