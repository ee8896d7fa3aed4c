package devcontainers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sync/semaphore"

	"codehub/api"
	"codehub/internal/postgres"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/runtime/registry"
	"codehub/internal/workspace"
	"codehub/internal/workspace/devcontainer"
)

const (
	// reportEvery is how often a build that runs writes how far it is, and sees that it is canceled.
	reportEvery = 2 * time.Second
	// endWithin bounds the attempts to record how a build ended.
	endWithin = 5 * time.Second
	maxLog    = 64 << 10 // bytes
	maxStep   = 200      // bytes
)

// Causes for which a build ends early.
var (
	errCanceled = errors.New("the build was canceled")
	errTimeout  = errors.New("the build took too long")
)

// BuilderConfig configures a Builder.
type BuilderConfig struct {
	Settings
	Store *postgres.DB
	Log   *slog.Logger
	// Dir is a folder of the builder's own for what a build needs until it ends. Run empties it.
	Dir string
	Images
}

// Builder builds images for workspaces: one at a time for a user. It keeps what a build needs until
// the build ends, and nothing afterwards. A nil Builder builds none.
type Builder struct {
	cfg    BuilderConfig
	jobs   chan job
	places *semaphore.Weighted
}

// job is a build that has begun.
type job struct {
	id     string // of BeginBuild
	caller workspace.Caller
	w      workspace.Workspace
	file   file
}

// NewBuilder returns a Builder. Run runs what it has begun.
func NewBuilder(cfg BuilderConfig) *Builder {
	return &Builder{cfg: cfg, jobs: make(chan job), places: semaphore.NewWeighted(int64(cfg.Builds))}
}

// Run runs builds until ctx ends, and removes images that no workspace uses.
func (b *Builder) Run(ctx context.Context) error {
	if b == nil {
		return nil
	}
	if err := os.RemoveAll(b.cfg.Dir); err != nil {
		b.cfg.Log.Warn("remove the files of builds failed", "err", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case j := <-b.jobs:
			running.Go(func() { b.run(ctx, j) })
		case <-sweep.C:
			running.Go(func() {
				if err := b.sweep(ctx); err != nil && ctx.Err() == nil {
					b.cfg.Log.Warn("remove built images failed", "err", err)
				}
			})
		}
	}
}

// begin begins the build of a file that needs one. Errors as of postgres.BeginBuild.
func (b *Builder) begin(ctx context.Context, caller workspace.Caller, w workspace.Workspace, f file) error {
	id, err := b.cfg.Store.BeginBuild(ctx, caller, w.ID, f.api.File)
	if err != nil {
		return err
	}
	select {
	case b.jobs <- job{id, caller, w, f}:
		return nil
	case <-ctx.Done(): // the server ends; the build is seen no more
		return &workspace.Error{Code: workspace.CodeUnavailable, Message: "The server is shutting down. Try again.", Err: ctx.Err()}
	}
}

func (b *Builder) run(ctx context.Context, j job) {
	log := b.cfg.Log.With("workspace", j.w.ID, "file", j.file.api.File)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &progress{report: postgres.BuildReport{State: postgres.BuildWaiting}}
	p.save = func(ctx context.Context) error {
		goes, err := b.cfg.Store.ReportBuild(ctx, j.id, p.now())
		if err == nil && !goes {
			cancel(errCanceled)
		}
		return err
	}
	var reporting sync.WaitGroup
	reporting.Go(func() {
		every := time.NewTicker(reportEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
			}
			_ = p.save(ctx) // it is tried again
		}
	})
	began := time.Now()
	err := b.places.Acquire(ctx, 1)
	if err == nil {
		p.change(func(r *postgres.BuildReport) { r.State = postgres.BuildBuilding })
		log.Info("building image")
		building, stop := context.WithTimeoutCause(ctx, b.cfg.Timeout, errTimeout)
		if err = b.buildAndUse(building, j, p); err != nil && building.Err() != nil {
			cancel(context.Cause(building))
		}
		stop()
		b.places.Release(1)
	}
	cause := context.Cause(ctx)
	cancel(nil)
	reporting.Wait()
	p.change(func(r *postgres.BuildReport) { r.State, r.Error = ended(err, cause) })
	r := p.now()
	log.Info("image build ended", "state", r.State, "image", r.Image, "err", err, "took", time.Since(began).Round(time.Second))
	b.record(context.WithoutCancel(ctx), j.id, r)
}

// buildAndUse builds the image, and has the workspace use the file with it.
func (b *Builder) buildAndUse(ctx context.Context, j job, p *progress) error {
	uses, err := b.cfg.build(ctx, filepath.Join(b.cfg.Dir, j.id), j, p)
	if err != nil {
		return err
	}
	if err := p.save(ctx); err != nil { // a cancellation since the last report counts
		return err
	}
	_, err = b.cfg.Store.PatchWorkspace(ctx, j.caller, j.w.ID, postgres.Patch{Devcontainer: workspace.Optional[workspace.Devcontainer]{Set: true, Value: &uses}})
	return err
}

// ended returns the state of a build that has ended, and a sentence for an error. cause is that of
// the end of its context, or nil.
func ended(err, cause error) (state, sentence string) {
	var coded *workspace.Error
	var refusal *registry.Refusal
	switch {
	case err == nil:
		return postgres.BuildDone, ""
	case errors.Is(cause, errCanceled):
		return postgres.BuildCanceled, ""
	case errors.Is(cause, errTimeout):
		return postgres.BuildFailed, "The build took too long and was stopped (CODEHUB_DEVCONTAINER_BUILD_TIMEOUT)."
	case cause != nil:
		return postgres.BuildFailed, "The server was stopped. Use the file again."
	case errors.As(err, &coded):
		return postgres.BuildFailed, coded.Message
	}
	switch {
	case errors.As(err, &refusal), image.PullRefused(err):
		return postgres.BuildFailed, sentenceOf(workspace.Cut(err.Error()))
	case errors.Is(err, runtime.ErrUnreachable):
		return postgres.BuildFailed, "Docker is not responding. Use the file again later."
	case errors.Is(err, runtime.ErrNoSpace), errors.Is(err, syscall.ENOSPC):
		return postgres.BuildFailed, "The disk of the server is full. Ask an administrator for space."
	}
	return postgres.BuildFailed, "The image could not be built. The server's log has the reason for administrators."
}

// sentenceOf returns a clause as a sentence.
func sentenceOf(clause string) string {
	first, size := utf8.DecodeRuneInString(clause)
	return string(unicode.ToUpper(first)) + clause[size:] + "."
}

// record records how a build ended. While the database does not respond it tries again.
func (b *Builder) record(ctx context.Context, id string, r postgres.BuildReport) {
	ctx, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	again := time.NewTicker(reportEvery)
	defer again.Stop()
	for {
		_, err := b.cfg.Store.ReportBuild(ctx, id, r)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			b.cfg.Log.Warn("record the end of a build failed", "err", err)
			return
		case <-again.C:
		}
	}
}

// progress is what a build that runs reports. It is safe for concurrent use.
type progress struct {
	save func(context.Context) error // reports at once

	mu     sync.Mutex
	report postgres.BuildReport // without its log
	log    []byte               // twice maxLog at most, so that few of its lines move it
}

func (p *progress) change(f func(*postgres.BuildReport)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.report)
}

func (p *progress) now() postgres.BuildReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.report
	tail := p.log
	if cut := len(tail) - maxLog; cut > 0 {
		_, tail, _ = bytes.Cut(tail[cut:], []byte("\n"))
	}
	r.Log = string(tail)
	return r
}

// step begins a part of the build.
func (p *progress) step(format string, args ...any) {
	p.line(fmt.Sprintf(format, args...))
	p.change(func(r *postgres.BuildReport) { r.Step = workspace.Cut(fmt.Sprintf(format, args...)) })
}

// line adds a line of output. Docker's own steps are steps.
func (p *progress) line(text string) {
	text = strings.Map(func(r rune) rune {
		if r != '\t' && workspace.Unprintable(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	p.change(func(r *postgres.BuildReport) {
		p.log = append(append(p.log, text...), '\n')
		if len(p.log) > 2*maxLog {
			p.log = append(p.log[:0], p.log[len(p.log)-maxLog:]...)
		}
		if strings.HasPrefix(text, "Step ") {
			r.Step = strings.ToValidUTF8(text[:min(len(text), maxStep)], "")
		}
	})
}

// ignore lists what a Feature asks for. Its line is one of the Feature's own file, so it is not listed.
func (p *progress) ignore(i devcontainer.Ignored) {
	p.change(func(r *postgres.BuildReport) {
		r.Ignored = append(r.Ignored[:len(r.Ignored):len(r.Ignored)], api.DevcontainerIgnored{Property: i.Property, Reason: string(i.Reason)})
	})
}
