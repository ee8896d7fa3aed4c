package runtimetest

import (
	"fmt"
	"maps"
	"slices"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// SetBefore sets the hook of every call and step; nil removes it.
func (f *Fake) SetBefore(b Before) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = b
}

// SetDown makes the backend not answer, from the next call or step on.
func (f *Fake) SetDown(down bool) {
	f.mu.Lock()
	f.down = down
	f.mu.Unlock()
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.change() // who follows a job is cut off
}

// SetPrepareError makes Prepare fail, and with it every start; nil ends that.
func (f *Fake) SetPrepareError(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prepareErr = err
}

// SetAddr gives containers that start from now on the address that addr says,
// so that a test can put a server of its own there.
func (f *Fake) SetAddr(addr func(workspace.ID) string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addr = addr
}

// Calls returns how often the method was called.
func (f *Fake) Calls(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// AddImage adds an image that is there; home must hold its parents before
// their children, the home itself (".") first.
func (f *Fake) AddImage(ref string, home []File) {
	f.setImage(ref, &fakeImage{home: home, local: true})
}

// AddRemoteImage adds an image that is to be had by a pull of so many bytes.
func (f *Fake) AddRemoteImage(ref string, home []File, size int64) {
	f.setImage(ref, &fakeImage{home: home, size: size})
}

// AddRefusedImage adds an image whose pull fails with these words.
func (f *Fake) AddRefusedImage(ref, words string) {
	f.setImage(ref, &fakeImage{refuse: words})
}

// AddHangingImage adds an image whose pull stands still until release is called.
func (f *Fake) AddHangingImage(ref string, home []File) (release func()) {
	img := &fakeImage{home: home, hang: make(chan struct{})}
	f.setImage(ref, img)
	return func() { close(img.hang) }
}

// RemoveImage makes the backend forget the image.
func (f *Fake) RemoveImage(ref string) { f.setImage(ref, nil) }

func (f *Fake) setImage(ref string, img *fakeImage) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if img == nil {
		delete(f.w.images, ref)
		return
	}
	f.w.images[ref] = img
}

// ExitOnStart makes the workspace's containers end as soon as they started.
func (f *Fake) ExitOnStart(id workspace.ID, on bool) { f.flag(f.w.exitOnStart, id, on) }

// NeverHealthy makes the workspace's containers not answer.
func (f *Fake) NeverHealthy(id workspace.ID, on bool) { f.flag(f.w.neverHealthy, id, on) }

func (f *Fake) flag(m map[workspace.ID]bool, id workspace.ID, on bool) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	m[id] = on
}

// HealthyAfter makes each of the workspace's containers answer from the nth
// probe on.
func (f *Fake) HealthyAfter(id workspace.ID, probes int) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.probesWanted[id] = probes
}

// EndContainer ends the workspace's container, as a crash in it would.
func (f *Fake) EndContainer(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if c := f.w.containers[id]; c != nil {
		c.end("Exited (137)")
		f.w.change()
	}
}

// EndAll ends every container and job, as a restart of the backend does.
func (f *Fake) EndAll() {
	f.w.mu.Lock()
	jobs := slices.Collect(maps.Values(f.w.jobs))
	f.w.mu.Unlock()
	for _, j := range jobs {
		f.w.kill(j)
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for _, c := range f.w.containers {
		if c.State == runtime.ContainerRunning {
			c.end("Exited (255)")
		}
	}
	f.w.change()
}

// EndJob kills a job by its id, as the kernel would.
func (f *Fake) EndJob(jobID string) {
	f.w.mu.Lock()
	j := f.w.jobByID(jobID)
	f.w.mu.Unlock()
	if j != nil {
		f.w.kill(j)
	}
}

// SetJob says what storage jobs do that start from now on; with nil they end at
// once with code 0.
func (f *Fake) SetJob(job JobFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.job = job
}

// SetDisks sets what Disks tells.
func (f *Fake) SetDisks(disks ...runtime.Disk) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disks = disks
}

// TakeContainer removes the workspace's container, as a person's hand would.
func (f *Fake) TakeContainer(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.containers, id)
	f.w.change()
}

// TakeVolume removes the workspace's volume, as a person's hand would.
func (f *Fake) TakeVolume(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.volumes, id)
	f.w.change()
}

// Prune removes what holds the workspace's home, as people do to tidy up.
func (f *Fake) Prune(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if v := f.w.volumes[id]; v != nil {
		v.Held = false
	}
	f.w.change()
}

// PutForeignVolume makes a volume with the workspace's name that nobody's
// installation made.
func (f *Fake) PutForeignVolume(id workspace.ID, files []File) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := &fakeVolume{Volume: runtime.Volume{Workspace: id, Storage: workspace.StorageDockerVolume}, files: map[string]File{}}
	for _, file := range files {
		v.files[file.Path] = file
	}
	f.w.volumes[id] = v
	f.w.change()
}

// Home returns what the workspace's volume holds, sorted by path, and whether
// there is a volume at all.
func (f *Fake) Home(id workspace.ID) ([]File, bool) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if v == nil {
		return nil, false
	}
	out := make([]File, 0, len(v.files))
	for _, path := range slices.Sorted(maps.Keys(v.files)) {
		out = append(out, v.files[path])
	}
	return out, true
}

// Read returns the content of a file in the workspace's home.
func (f *Fake) Read(id workspace.ID, path string) (string, bool) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if v == nil {
		return "", false
	}
	file, ok := v.files[path]
	return file.Content, ok
}

// Write stores a file in the workspace's home, as what runs in its container
// would; without a running container it fails.
func (f *Fake) Write(id workspace.ID, path, content string) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	c, v := f.w.containers[id], f.w.volumes[id]
	if c == nil || c.State != runtime.ContainerRunning || v == nil {
		return fmt.Errorf("workspace %s does not run", id)
	}
	v.files[path] = File{Path: path, Mode: 0o644, UID: 1000, GID: 1000, Content: content}
	v.folder = ""
	return nil
}

// Use has a container that is nobody's of codehub's mount the workspace's home,
// until leave is called.
func (f *Fake) Use(id workspace.ID, container string) (leave func()) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.users[id] = append(f.w.users[id], container)
	return func() {
		f.w.mu.Lock()
		defer f.w.mu.Unlock()
		if i := slices.Index(f.w.users[id], container); i >= 0 {
			f.w.users[id] = slices.Delete(f.w.users[id], i, i+1)
		}
	}
}

// WriteBeside stores a file in the workspace's home, as a foreign container
// would that comes and goes.
func (f *Fake) WriteBeside(id workspace.ID, path, content string) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if v == nil {
		return fmt.Errorf("workspace %s has no volume", id)
	}
	v.files[path] = File{Path: path, Mode: 0o644, Content: content}
	v.folder = ""
	return nil
}

// Edit changes the home by way of its folder.
func (f *Fake) Edit(id workspace.ID, edit func(folder string) error) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	v := f.w.volumes[id]
	if v == nil {
		return fmt.Errorf("workspace %s has no volume", id)
	}
	folder, err := f.w.folderOf(v)
	if err != nil {
		return err
	}
	if err := edit(folder); err != nil {
		return err
	}
	v.files, err = load(folder)
	return err
}

// SetNoAddress makes every start of a container be refused for want of a network
// address, in these words; empty ends that.
func (f *Fake) SetNoAddress(words string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.noAddress = words
}
