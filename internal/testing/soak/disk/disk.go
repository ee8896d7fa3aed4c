// Package disk is a block device with a volatile write cache whose power can be
// cut.
//
// Attach attaches a loop device to a FUSE file that this process serves. The
// block layer sends a flush where a file system asks for durability (the loop
// driver turns it into FSYNC), so that this package knows which writes a drive
// may still have in its cache. PowerOff chooses for every 4 KiB page that was
// written since the last flush which of its versions survives, and fails every
// further request. Killing processes instead would lose no write.
//
// Pages are written atomically, as drives with 4 KiB sectors promise.
package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Loss is a rule for which unflushed writes survive a power cut.
type Loss int

const (
	LoseNone   Loss = iota // every write survives
	LoseAll                // only flushed writes survive
	LoseRandom             // each page keeps any of its versions, independently
	LoseSuffix             // the writes up to a random moment survive
	losses
)

func (l Loss) String() string {
	return [...]string{"none", "all", "random", "suffix"}[l]
}

// AnyLoss returns a random Loss.
func AnyLoss(rng *rand.Rand) Loss { return Loss(rng.IntN(int(losses))) }

const page = 4096

// Disk is an attached block device.
type Disk struct {
	Device string // /dev/loopN

	image  *os.File
	size   int64
	mount  string // the FUSE file
	fuse   int    // /dev/fuse
	served sync.WaitGroup

	mu      sync.Mutex
	off     bool
	undo    []version // oldest first, since the last flush
	opens   int       // open handles of the FUSE file; the loop device has one
	writes  int
	flushes int
}

// version is the content of a page before a write.
type version struct {
	at  int64
	old []byte
}

// Stats counts requests since the device was attached.
type Stats struct{ Writes, Flushes, Unflushed int }

// Attach creates a block device from an image file, whose size is a multiple of
// 4 KiB. dir is an existing folder for the FUSE file. The caller must be root.
func Attach(image, dir string) (*Disk, error) {
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d := &Disk{image: f, size: fi.Size(), mount: filepath.Join(dir, "disk")}
	if d.fuse, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("open /dev/fuse: %w", err), f.Close())
	}
	if err := os.WriteFile(d.mount, nil, 0o600); err != nil {
		return nil, errors.Join(err, f.Close(), unix.Close(d.fuse))
	}
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0", d.fuse, unix.S_IFREG|0o600)
	if err := unix.Mount("codehub-soak", d.mount, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount FUSE file: %w", err), f.Close(), unix.Close(d.fuse))
	}
	for range 4 {
		d.served.Go(d.serve)
	}
	out, err := exec.Command("losetup", "--find", "--show", "--direct-io=on", d.mount).CombinedOutput()
	if err != nil {
		d.unmount()
		return nil, fmt.Errorf("attach loop device: %w: %s", err, out)
	}
	d.Device = strings.TrimSpace(string(out))
	return d, nil
}

// Stats returns the number of requests.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Stats{d.writes, d.flushes, len(d.undo)}
}

// PowerOff cuts the power: it loses unflushed writes according to loss, and
// every further request fails. It returns the number of unflushed page writes
// and of lost ones.
func (d *Disk) PowerOff(loss Loss, rng *rand.Rand) (unflushed, lost int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return 0, 0, errors.New("the power is already off")
	}
	d.off = true
	undo := d.undo
	d.undo = nil
	lost, err = d.lose(undo, loss, rng)
	return len(undo), lost, err
}

func (d *Disk) lose(undo []version, loss Loss, rng *rand.Rand) (lost int, err error) {
	back := func(v version) error {
		_, err := d.image.WriteAt(v.old, v.at)
		return err
	}
	switch loss {
	case LoseAll, LoseSuffix:
		keep := 0
		if loss == LoseSuffix {
			keep = rng.IntN(len(undo) + 1)
		}
		for i := len(undo) - 1; i >= keep; i-- {
			if err := back(undo[i]); err != nil {
				return lost, err
			}
			lost++
		}
	case LoseRandom:
		of := map[int64][]version{}
		var order []int64
		for _, v := range undo {
			if of[v.at] == nil {
				order = append(order, v.at)
			}
			of[v.at] = append(of[v.at], v)
		}
		for _, at := range order {
			versions := of[at]
			// The newest version is on the image; versions[i] is the one before write i.
			if i := rng.IntN(len(versions) + 1); i < len(versions) {
				if err := back(versions[i]); err != nil {
					return lost, err
				}
				lost += len(versions) - i
			}
		}
	}
	return lost, nil
}

// Detach removes the device and waits until the kernel has closed the image.
// The file systems on it must be unmounted, or the power must be off.
func (d *Disk) Detach() error {
	var errs []error
	if out, err := exec.Command("losetup", "--detach", d.Device).CombinedOutput(); err != nil {
		errs = append(errs, fmt.Errorf("detach %s: %w: %s", d.Device, err, out))
	}
	for deadline := time.Now().Add(5 * time.Minute); d.inUse(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("%s is still in use", d.Device))
			break
		}
	}
	return errors.Join(append(errs, d.unmount())...)
}

func (d *Disk) inUse() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opens > 0
}

// unmount aborts the FUSE connection (MNT_FORCE), even if another mount
// namespace has the file mounted, and waits for the goroutines of serve.
func (d *Disk) unmount() error {
	err := unix.Unmount(d.mount, unix.MNT_FORCE|unix.MNT_DETACH)
	if err != nil {
		err = fmt.Errorf("unmount %s: %w", d.mount, err)
	}
	d.served.Wait()
	return errors.Join(err, unix.Close(d.fuse), d.image.Close())
}
