package inside

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"codehub/internal/archive"
	"codehub/internal/base/treewalk"
	"codehub/internal/base/treewipe"
	"codehub/internal/runtime/agent"
	"codehub/internal/workspace"
)

const (
	// unpackPrefix begins the name of the folder beside the target in which a file is unpacked.
	unpackPrefix = ".codehub-restore-"
	// keptInfix is between the name and the time of what a restored file has replaced.
	keptInfix = ".before-restore-"
	maxName   = 255
	// unpackTries is how often a program may change the target meanwhile.
	unpackTries = 20
	// unpackDrain is how long the server may take to read the answer to a tar that was not read to its
	// end.
	unpackDrain = 10 * time.Second
)

// unpack puts a file or folder of a backup into the home, as the workspace's user.
func (s *Server) unpack(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	place, err := openPlace(s.cfg.Home, q.Get("to"))
	if err != nil {
		refuse(w, unpackStatus(err), err)
		return
	}
	defer place.close()
	replace := q.Get("replace") == "true"
	if err := place.free(); err != nil && !replace {
		place.undo()
		refuse(w, unpackStatus(err), err)
		return
	}
	conn, ok := s.converse(w, r)
	if !ok {
		place.undo()
		return
	}
	defer conn.Close()
	kept, err := place.put(r.Context(), &frameInput{conn: conn, frames: agent.NewFrameReader(conn)}, replace)
	result := agent.Unpacked{Kept: []byte(kept)}
	if err != nil {
		place.undo()
		result = agent.Unpacked{Status: unpackStatus(err), Message: err.Error()}
	}
	if event(agent.NewFrameWriter(conn), result) != nil {
		return
	}
	// A close with unread input would reset the connection, and the answer would be lost.
	_ = conn.SetReadDeadline(time.Now().Add(unpackDrain))
	_, _ = io.Copy(io.Discard, conn)
}

// frameInput reads the input of a conversation. io.EOF is its end that the server has sent.
type frameInput struct {
	conn   *net.TCPConn
	frames *agent.FrameReader
	left   []byte
	err    error
}

// Read implements io.Reader.
func (f *frameInput) Read(p []byte) (int, error) {
	for len(f.left) == 0 && f.err == nil {
		_ = f.conn.SetReadDeadline(time.Now().Add(2 * agent.UnpackPause)) // a connection that has ended fails below
		frame, err := f.frames.Read()
		switch {
		case err == io.EOF:
			f.err = io.ErrUnexpectedEOF
		case err != nil:
			f.err = err
		case frame.Kind == agent.FrameStdinEnd:
			f.err = io.EOF
		case frame.Kind == agent.FrameStdin:
			f.left = frame.Payload
		}
	}
	if len(f.left) == 0 {
		return 0, f.err
	}
	n := copy(p, f.left)
	f.left = f.left[n:]
	return n, nil
}

// Errors of a place.
var (
	errExists  = errors.New("already exists")
	errBadPath = errors.New("not a path in the home")
)

// unpackStatus returns the status of an answer.
func unpackStatus(err error) int {
	switch {
	case errors.Is(err, errExists):
		return http.StatusConflict
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return http.StatusInsufficientStorage
	}
	return http.StatusUnprocessableEntity
}

// place is where a file is put: a name in a folder that is held open. The way there follows no
// symbolic link.
type place struct {
	dir  int    // opened with O_PATH
	path string // below the home
	base string
	made []folder // that were missing, the innermost last
}

// folder is a name in an open folder.
type folder struct {
	in   int
	name string
}

// openPlace opens the folder of a path below the home. It makes missing folders.
func openPlace(home, to string) (*place, error) {
	if !filepath.IsLocal(to) || path.Clean(to) != to || to == "." || strings.IndexByte(to, 0) >= 0 {
		return nil, fmt.Errorf("%s: %w", treewalk.Quoted(to), errBadPath)
	}
	at, err := unix.Open(home, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the home: %w", err)
	}
	p := &place{dir: at, path: to}
	parts := strings.Split(to, "/")
	for i, name := range parts[:len(parts)-1] {
		if err := p.enter(name); err != nil {
			p.undo()
			p.close()
			above := treewalk.Quoted(strings.Join(parts[:i+1], "/"))
			if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				return nil, fmt.Errorf("%s is a link or a file, not a folder", above)
			}
			return nil, fmt.Errorf("open the folder %s: %w", above, err)
		}
	}
	p.base = parts[len(parts)-1]
	return p, nil
}

// enter opens a folder of the present one.
func (p *place) enter(name string) error {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	next, err := unix.Openat(p.dir, name, flags, 0)
	if errors.Is(err, unix.ENOENT) {
		switch err := unix.Mkdirat(p.dir, name, 0o755); {
		case err == nil:
			above, err := unix.FcntlInt(uintptr(p.dir), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				_ = unix.Unlinkat(p.dir, name, unix.AT_REMOVEDIR)
				return err
			}
			p.made = append(p.made, folder{above, name})
		case !errors.Is(err, unix.EEXIST):
			return err
		}
		next, err = unix.Openat(p.dir, name, flags, 0)
	}
	if err != nil {
		return err
	}
	unix.Close(p.dir)
	p.dir = next
	return nil
}

func (p *place) close() {
	unix.Close(p.dir)
	for _, f := range p.made {
		unix.Close(f.in)
	}
}

// undo removes the folders that were made, unless something is in them.
func (p *place) undo() {
	for i := len(p.made) - 1; i >= 0; i-- {
		_ = unix.Unlinkat(p.made[i].in, p.made[i].name, unix.AT_REMOVEDIR)
	}
}

// free returns errExists if something is at the place.
func (p *place) free() error {
	var st unix.Stat_t
	err := unix.Fstatat(p.dir, p.base, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil:
		return p.exists()
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return p.failed(err)
}

func (p *place) exists() error { return fmt.Errorf("%s %w", treewalk.Quoted(p.path), errExists) }
func (p *place) failed(err error) error {
	return fmt.Errorf("put %s in place: %w", treewalk.Quoted(p.path), err)
}

// put unpacks a tar beside the place and moves the result there. It returns the name that what was
// there before has now.
func (p *place) put(ctx context.Context, tar io.Reader, replace bool) (kept string, err error) {
	temporary := unpackPrefix + rand.Text()
	if err := unix.Mkdirat(p.dir, temporary, 0o700); err != nil {
		return "", p.failed(err)
	}
	ready := temporary
	defer func() {
		p.remove(temporary)
		p.remove(ready)
	}()
	dir, err := unix.Openat(p.dir, temporary, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", p.failed(err)
	}
	defer unix.Close(dir)
	uid := uint32(os.Getuid())
	isFolder, err := archive.UnpackPart(ctx, tar, dir, archive.OwnerMap{From: workspace.ArchivedUID, To: uid})
	if err != nil {
		return "", err
	}
	if !isFolder {
		// From here on all renames are within one folder: a folder without write permission could not be
		// moved into another.
		ready = temporary + "-" + archive.PartName
		if err := unix.Renameat(dir, archive.PartName, p.dir, ready); err != nil {
			ready = temporary
			return "", p.failed(err)
		}
	}
	for range unpackTries {
		err := rename(p.dir, ready, p.base)
		if err == nil {
			return "", nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return "", p.failed(err)
		}
		if !replace {
			return "", p.exists()
		}
		err = unix.Renameat2(p.dir, ready, p.dir, p.base, unix.RENAME_EXCHANGE)
		if err == nil {
			former := ready // has what was there, and is never removed
			if ready = ""; temporary == former {
				temporary = ""
			}
			return p.keep(former), nil
		}
		if errors.Is(err, unix.EINVAL) { // this file system cannot exchange
			kept, err := p.moveAway(p.base)
			if err == nil {
				if err = rename(p.dir, ready, p.base); err == nil {
					return kept, nil
				}
				_ = rename(p.dir, kept, p.base)
			}
			if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.ENOENT) {
				return "", p.failed(err)
			}
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return "", p.failed(err)
		}
	}
	return "", fmt.Errorf("a program in the workspace keeps changing %s", treewalk.Quoted(p.path))
}

// keep gives what was at the place its lasting name. If that fails, it stays under the former one.
func (p *place) keep(former string) string {
	if kept, err := p.moveAway(former); err == nil {
		return kept
	}
	return former
}

// moveAway renames a name in the folder to that of what a restored file has replaced.
func (p *place) moveAway(name string) (string, error) {
	suffix := keptInfix + time.Now().UTC().Format("20060102T150405Z")
	for n := 1; ; n++ {
		end := suffix
		if n > 1 {
			end += "-" + strconv.Itoa(n)
		}
		kept := p.base[:min(len(p.base), maxName-len(end))] + end
		err := rename(p.dir, name, kept)
		if err == nil {
			return kept, nil
		}
		if !errors.Is(err, unix.EEXIST) || n == 1000 {
			return "", err
		}
	}
}

// rename renames within a folder. Where the file system knows no flag, a name that appears at the same
// time may be replaced.
func rename(dir int, from, to string) error {
	err := unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(dir, to, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == nil:
		return unix.EEXIST
	case !errors.Is(err, unix.ENOENT):
		return err
	}
	return unix.Renameat(dir, from, dir, to)
}

// remove removes what is left of an unpacking, also after its end. What cannot be removed stays for
// its user to see.
func (p *place) remove(name string) {
	if name != "" {
		_ = treewipe.Remove(context.Background(), fmt.Sprintf("/proc/self/fd/%d/%s", p.dir, name), nil)
	}
}
