package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"codehub/internal/runtime"
)

// runJob starts a created job.
func (f *Fake) runJob(j *fakeJob) error {
	f.mu.Lock()
	run := f.job
	f.mu.Unlock()
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.w.jobByID(j.ID) == nil {
		return fmt.Errorf("start job of %s: it was removed", j.Workspace)
	}
	v := f.w.volumes[j.Workspace]
	if j.Kind == runtime.JobDrill {
		v = &fakeVolume{}
	} else if !f.owns(v, j.VolumeClaim) {
		return fmt.Errorf("volume of %s: %w", j.Workspace, runtime.ErrVolumeMismatch)
	}
	if run == nil {
		j.state = jobEnded
		close(j.done)
		f.w.change()
		return nil
	}
	var home string
	var err error
	if j.readOnly() {
		home, err = f.w.folderOf(v)
	} else {
		home, err = unload("", v.files)
	}
	if err != nil {
		return fmt.Errorf("start job of %s: %w", j.Workspace, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	j.cancel, j.state = cancel, jobRunning
	f.w.change()
	go f.w.carryOut(ctx, j, v, home, run)
	return nil
}

// readOnly reports whether the job has the home itself, which it only reads.
func (j *fakeJob) readOnly() bool {
	return j.Kind == runtime.JobArchive || j.Kind == runtime.JobBackup
}

// carryOut runs the job to its end and keeps what it made of the home.
func (w *world) carryOut(ctx context.Context, j *fakeJob, v *fakeVolume, home string, run JobFunc) {
	code := run(ctx, j.spec, home, jobReport{w, j})
	files, err := load(home)
	w.mu.Lock()
	defer w.mu.Unlock()
	if j.readOnly() && v.folder == home && !maps.Equal(files, v.files) {
		v.folder = "" // the job has written to a read-only home
	}
	if err == nil && v.folder != home {
		err = os.RemoveAll(home)
	}
	if err != nil {
		j.lines = append(j.lines, "the fake's job: "+err.Error())
		code = 1
	} else if j.Kind == runtime.JobRestore {
		v.files, v.folder = files, ""
	}
	j.state, j.exit = jobEnded, code
	if j.killed {
		j.exit = codeKilled
	}
	j.cancel()
	close(j.done)
	w.change()
}

// kill ends a running job and waits for its end.
func (w *world) kill(j *fakeJob) {
	w.mu.Lock()
	running, done := j.state == jobRunning, j.done
	if running {
		j.killed = true
		j.cancel()
	}
	w.mu.Unlock()
	if running {
		<-done
	}
}

// unload writes a home to a new directory, inside the given one if it is not empty.
func unload(within string, files map[string]File) (string, error) {
	dir, err := os.MkdirTemp(within, "codehub-fake-home-")
	if err != nil {
		return "", err
	}
	paths := make([]string, 0, len(files))
	for path := range files {
		paths = append(paths, path)
	}
	slices.Sort(paths) // parents first
	for _, path := range paths {
		file, target := files[path], filepath.Join(dir, path)
		switch {
		case path == ".":
		case file.Mode.IsDir():
			err = os.MkdirAll(target, 0o700)
		case file.Mode&fs.ModeSymlink != 0:
			err = os.Symlink(file.Content, target)
		default:
			err = errors.Join(os.MkdirAll(filepath.Dir(target), 0o700), os.WriteFile(target, []byte(file.Content), 0o600))
		}
		if err != nil {
			return "", err
		}
	}
	slices.Reverse(paths) // children first: a directory may deny access to its content
	for _, path := range paths {
		file, target := files[path], filepath.Join(dir, path)
		if os.Geteuid() == 0 {
			err = os.Lchown(target, file.UID, file.GID)
		}
		if err == nil && file.Mode&fs.ModeSymlink == 0 {
			err = os.Chmod(target, file.Mode)
		}
		if err != nil {
			return "", err
		}
	}
	return dir, nil
}

// load reads a home from a directory.
func load(dir string) (map[string]File, error) {
	files := map[string]File{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		if name == "" {
			name = "."
		}
		file := File{Path: name, Mode: info.Mode()}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			file.UID, file.GID = int(stat.Uid), int(stat.Gid)
		}
		switch {
		case info.Mode().IsRegular():
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			file.Content = string(raw)
		case info.Mode()&fs.ModeSymlink != 0:
			if file.Content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		files[name] = file
		return nil
	})
	return files, err
}
