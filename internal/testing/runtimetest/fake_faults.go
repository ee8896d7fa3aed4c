package runtimetest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// SetBefore sets the hook of every call and step; nil removes it.
func (f *Fake) SetBefore(b Before) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = b
}

// SetDown makes the runtime not respond from the next call or step.
func (f *Fake) SetDown(down bool) {
	f.mu.Lock()
	f.down = down
	f.mu.Unlock()
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.change() // interrupts those who follow a job
}

// SetAgent gives containers that start from now on the agent at the address that addr
// returns, which may be a real one. Without it they have none, like containers of
// an earlier version.
func (f *Fake) SetAgent(addr func(id workspace.ID, secret string) string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.agent = addr
}

// Calls returns how often the method was called.
func (f *Fake) Calls(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Graces returns how long each call of RemoveContainer has given the container to end.
func (f *Fake) Graces() []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.graces)
}

// ExitOnStart makes the workspace's containers exit as soon as they start.
func (f *Fake) ExitOnStart(id workspace.ID, on bool) { f.flag(f.w.exitOnStart, id, on) }

// NeverHealthy makes probes of the workspace's containers fail.
func (f *Fake) NeverHealthy(id workspace.ID, on bool) { f.flag(f.w.neverHealthy, id, on) }

func (f *Fake) flag(m map[workspace.ID]bool, id workspace.ID, on bool) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	m[id] = on
}

// EndContainer ends the workspace's container, as a crash does.
func (f *Fake) EndContainer(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if c := f.w.containers[id]; c != nil {
		c.end("Exited (137)")
		f.w.change()
	}
}

// EndAll ends every container and job, as a restart of Docker does.
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

// EndJob kills a job by its ID.
func (f *Fake) EndJob(jobID string) {
	f.w.mu.Lock()
	j := f.w.jobByID(jobID)
	f.w.mu.Unlock()
	if j != nil {
		f.w.kill(j)
	}
}

// SetJob sets what storage jobs do that start from now on; with nil they exit with
// code 0 at once.
func (f *Fake) SetJob(job JobFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.job = job
}

// SetDisks sets the result of Disks.
func (f *Fake) SetDisks(disks ...runtime.Disk) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disks = disks
}

// TakeContainer removes the workspace's container by hand.
func (f *Fake) TakeContainer(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.containers, id)
	f.w.change()
}

// TakeVolume removes the workspace's volume by hand.
func (f *Fake) TakeVolume(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.volumes, id)
	f.w.change()
}

// Prune removes the containers that hold the workspace's home.
func (f *Fake) Prune(id workspace.ID) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if v := f.w.volumes[id]; v != nil {
		v.Held = false
	}
	f.w.change()
}

// PutForeignVolume creates a volume with the workspace's name and no labels.
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

// Home returns the content of the workspace's volume, sorted by path, and whether
// there is a volume.
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

// Write writes a file to the workspace's home from its running container, and fails
// if there is none.
func (f *Fake) Write(id workspace.ID, path, content string) error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	c, v := f.w.containers[id], f.w.volumes[id]
	if c == nil || c.State != runtime.ContainerRunning || v == nil {
		return fmt.Errorf("workspace %s is not running", id)
	}
	v.files[path] = File{Path: path, Mode: 0o644, UID: c.uid, GID: c.uid, Content: content}
	v.folder = ""
	return nil
}

// Use mounts the workspace's home in a foreign container until leave is called.
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

// WriteBeside writes a file to the workspace's home from a short-lived foreign
// container.
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

// Edit changes the home through its directory.
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

// SetNoRoom makes every storage job wait with this message for a node with room; empty ends
// that. The job is there meanwhile, and StartJob goes on with it.
func (f *Fake) SetNoRoom(words string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.noRoom = words
}

// SetNoAddress makes every start of a container fail with this message for lack of
// a network address; empty ends that.
func (f *Fake) SetNoAddress(words string) {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.noAddress = words
}
