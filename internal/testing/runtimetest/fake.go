// Package runtimetest provides an in-memory runtime with injectable faults, and the
// conformance suite that it and the real runtimes pass.
package runtimetest

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// DefaultImage is an image that every Fake has; its content at HomeDir is
// DefaultHome.
const DefaultImage = "codehub/fake:latest"

// File is an entry of a home, by its relative path; "." is the home itself.
type File struct {
	Path    string
	Mode    fs.FileMode
	UID     int
	GID     int
	Content string
}

// DefaultHome is the content of DefaultImage at HomeDir.
func DefaultHome() []File {
	return []File{
		{Path: ".", Mode: fs.ModeDir | 0o750, UID: 1000, GID: 1000},
		{Path: ".config", Mode: fs.ModeDir | 0o700, UID: 1000, GID: 1000},
		{Path: ".config/settings.json", Mode: 0o600, UID: 1000, GID: 1000, Content: "{}"},
		{Path: ".profile", Mode: 0o644, UID: 1000, GID: 1000, Content: "umask 022\n"},
		{Path: "project", Mode: fs.ModeDir | 0o755, UID: 1000, GID: 1000},
	}
}

// Before is called before every operation, and before the steps of an operation at
// which a crash can occur. If it returns an error, the operation ends there and
// returns it. It may also block, to make a step slow, or change the state.
//
// The operations are the names of runtime.Runtime's methods. The steps:
//
//	CreateVolume/pull, StartContainer/pull   the image is missing
//	CreateVolume/slow      half of the home is copied and reported
//	CreateVolume/seed      the volume is created, half of the home copied
//	CreateVolume/done      the seeding has finished, the call has not returned
//	StartContainer/start   the container is created, not started
//	StartContainer/done    the container is running, the call has not returned
//	RemoveContainer/remove the container has ended and still exists
//	StartJob/start         the job is created, not started
//	StartJob/done          the job is running, the call has not returned
//	MarkRestored/done      the home is marked, the call has not returned
//	RemoveVolume/begun     the home does not count as complete any more
//	RemoveVolume/half      half of the home is removed
//	RemoveVolume/done      the volume is removed, the call has not returned
//	OwnHome/half           half of the files have the new owner
//	SetAside/copied        the volume is copied, its name is not free
//	SetAside/done          the name is free, the call has not returned
//	SetMark/done           the mark is stored, the call has not returned
//
// id is empty for operations that do not concern a single workspace.
type Before func(ctx context.Context, op string, id workspace.ID) error

// Fake is an in-memory runtime.Runtime. It has no clock. It is safe for concurrent
// use, and faults can be set at any time.
type Fake struct {
	installation string
	w            *world

	mu     sync.Mutex
	before Before
	down   bool
	agent  func(id workspace.ID, secret string) string
	job    JobFunc
	disks  []runtime.Disk
	calls  map[string]int
	graces []time.Duration // of the calls of RemoveContainer
}

var _ runtime.Runtime = (*Fake)(nil)

// world is the state that several installations share.
type world struct {
	mu           sync.Mutex
	changed      chan struct{} // closed and replaced at every change
	serial       int
	images       map[string]*fakeImage   // by ID: on this machine
	tags         map[string]*fakeImage   // by reference: on this machine
	registry     map[string]*remoteImage // by reference
	containers   map[workspace.ID]*fakeContainer
	volumes      map[workspace.ID]*fakeVolume
	jobs         map[jobName]*fakeJob
	asides       []fakeAside
	marks        map[string]map[string]workspace.Mark // by installation and ID
	exitOnStart  map[workspace.ID]bool
	neverHealthy map[workspace.ID]bool
	users        map[workspace.ID][]string // foreign containers that have mounted the home
	noAddress    string                    // why no container can be started; empty: addresses are available
	noRoom       string                    // why no node has room for a storage job; empty: there is room
	scratch      string                    // directory for homes as directories; empty: not created yet
}

type fakeContainer struct {
	runtime.Container
	installation string
	uid          int
	secret       string
	agent        string // address of its agent
	hostname     string
	env          map[string]string
	log          []string
}

type fakeVolume struct {
	runtime.Volume
	installation string // empty: created by hand
	files        map[string]File
	folder       string // the files as a directory, for archive jobs and fingerprints; empty: none, or out of date
	live         bool   // settled
	proof        string // ID of the job that Marker is from; empty: the seeding
	goes         bool   // its removal has begun
}

// NewFake returns a runtime with its own state.
func NewFake() *Fake {
	w := &world{
		changed:      make(chan struct{}),
		images:       map[string]*fakeImage{},
		tags:         map[string]*fakeImage{},
		registry:     map[string]*remoteImage{},
		containers:   map[workspace.ID]*fakeContainer{},
		volumes:      map[workspace.ID]*fakeVolume{},
		jobs:         map[jobName]*fakeJob{},
		marks:        map[string]map[string]workspace.Mark{},
		exitOnStart:  map[workspace.ID]bool{},
		neverHealthy: map[workspace.ID]bool{},
		users:        map[workspace.ID][]string{},
	}
	f := &Fake{installation: "installation-1", w: w, calls: map[string]int{}}
	f.AddImage(DefaultImage, DefaultHome())
	return f
}

// Close removes the fake's directories. Jobs must have ended.
func (f *Fake) Close() error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.w.scratch == "" {
		return nil
	}
	return os.RemoveAll(f.w.scratch)
}

// Neighbour returns another installation's runtime that shares the state.
func (f *Fake) Neighbour() *Fake {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.serial++
	return &Fake{installation: fmt.Sprintf("installation-n%d", f.w.serial), w: f.w, calls: map[string]int{}}
}

// enter begins every call.
func (f *Fake) enter(ctx context.Context, op string, id workspace.ID) error {
	f.mu.Lock()
	f.calls[op]++
	f.mu.Unlock()
	return f.step(ctx, op, id)
}

func (f *Fake) step(ctx context.Context, op string, id workspace.ID) error {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, op, id); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return fmt.Errorf("%s: %w", op, runtime.ErrUnreachable)
	}
	return nil
}

// change wakes those who wait for a change. The caller holds w.mu.
func (w *world) change() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) nextID() string {
	w.serial++
	return fmt.Sprintf("%064x", w.serial)
}

// Containers implements runtime.Runtime.
func (f *Fake) Containers(ctx context.Context) ([]runtime.Container, error) {
	if err := f.enter(ctx, "Containers", ""); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var out []runtime.Container
	for _, id := range slices.Sorted(maps.Keys(f.w.containers)) {
		if c := f.w.containers[id]; c.installation == f.installation {
			out = append(out, c.Container)
		}
	}
	return out, nil
}

// Volumes implements runtime.Runtime.
func (f *Fake) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	if err := f.enter(ctx, "Volumes", ""); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var out []runtime.Volume
	for _, id := range slices.Sorted(maps.Keys(f.w.volumes)) {
		switch v := f.w.volumes[id]; v.installation {
		case f.installation:
			out = append(out, v.Volume)
		case "":
			out = append(out, runtime.Volume{Workspace: id, Storage: v.Storage, Foreign: true})
		}
	}
	return out, nil
}

// Mark implements runtime.Runtime.
func (f *Fake) Mark(ctx context.Context) (m workspace.Mark, found bool, err error) {
	if err := f.enter(ctx, "Mark", ""); err != nil {
		return m, false, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(f.w.marks[f.installation])) {
		if o := f.w.marks[f.installation][id]; !found || o.Serial >= m.Serial {
			m, found = o, true
		}
	}
	return m, found, nil
}

// SetMark implements runtime.Runtime.
func (f *Fake) SetMark(ctx context.Context, m workspace.Mark) error {
	if err := f.enter(ctx, "SetMark", ""); err != nil {
		return err
	}
	f.w.mu.Lock()
	marks := f.w.marks[f.installation]
	if marks == nil {
		marks = map[string]workspace.Mark{}
		f.w.marks[f.installation] = marks
	}
	if _, there := marks[m.ID]; !there {
		marks[m.ID] = m
	}
	maps.DeleteFunc(marks, func(_ string, o workspace.Mark) bool { return o.Serial < m.Serial })
	f.w.change()
	f.w.mu.Unlock()
	return f.step(ctx, "SetMark/done", "")
}

// TakeMarks removes all marks of this installation, as pruning volumes does.
func (f *Fake) TakeMarks() {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.marks, f.installation)
	f.w.change()
}

// Prepare implements runtime.Runtime.
func (f *Fake) Prepare(ctx context.Context) error {
	return f.enter(ctx, "Prepare", "")
}
