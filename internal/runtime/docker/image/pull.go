package image

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"codehub/internal/base/health"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/workspace"
)

// Docker downloads a fixed number of layers at once (three by default) for all pulls
// together, in the order in which they were requested. A slow registry can occupy
// all of them with the layers of one image. So each user has one pull at a time, and a
// pull that is too slow or takes too long is cancelled.

// pullRules are the limits of image pulls.
type pullRules struct {
	minRate int64         // bytes per second; 0: no minimum
	timeout time.Duration // longest time for which Docker may work on a pull; 0: no limit
	window  time.Duration // over which the rate is measured
	blocked time.Duration // how long no pull may download anything before that is reported
	tick    time.Duration // how often the pulls are judged
}

const (
	// rateBytes is how much a pull at the minimum rate downloads in one window:
	// several times what Docker downloads between two reports.
	rateBytes   = 2 << 20
	minWindow   = 10 * time.Second
	maxWindow   = 5 * time.Minute
	pullBlocked = 30 * time.Second
	pullTick    = time.Second
)

func newPullRules(c Config) pullRules {
	window := maxWindow
	if c.PullBytesPerSecond > 0 {
		window = min(max(time.Duration(rateBytes/c.PullBytesPerSecond)*time.Second, minWindow), maxWindow)
	}
	return pullRules{minRate: c.PullBytesPerSecond, timeout: c.PullTimeout, window: window, blocked: pullBlocked, tick: pullTick}
}

// pulls are all image pulls, in the order of their requests.
type pulls struct {
	rules pullRules
	stuck *health.Condition

	mu        sync.Mutex
	list      []*pulling
	given     int       // how many pulls Docker was given
	blockedAt time.Time // since when all pulls wait for downloads; zero: one does not
}

// pulling is one pull. pulls.mu protects it.
type pulling struct {
	user   string
	phases map[string]layerPhase // of its layers
	sum    layers
	begun  int // its place in the order in which Docker was given the pulls; 0: it was not

	held     time.Duration // since the last measurement: how long the registry was to send something
	measured int64         // what was downloaded at that time
}

type layerPhase int

// In this order, the phase of a pull is that of its first layer.
const (
	layerActive  layerPhase = iota // it occupies one of Docker's downloads
	layerAsked                     // it does, or it waits: Docker may fail to report that (Docker 20.10)
	layerWaiting                   // for one of Docker's downloads
	layerDone
)

// phaseOf returns the phase of a layer by Docker's status; known is false for a
// status that is not about a layer.
func phaseOf(status string) (phase layerPhase, known bool) {
	switch status {
	case "Waiting":
		return layerWaiting, true
	case "Pulling fs layer":
		return layerAsked, true
	case "Downloading":
		return layerActive, true
	case "Verifying Checksum", "Download complete", "Extracting", "Pull complete", "Already exists":
		return layerDone, true
	}
	return 0, false
}

// layer records Docker's report on a layer, and reports whether more was downloaded.
func (p *pulling) layer(id, status string, done, total int64) (changed bool) {
	phase, known := phaseOf(status)
	if id == "" || !known {
		return false
	}
	if p.phases == nil {
		p.phases = map[string]layerPhase{}
	}
	p.phases[id] = phase
	return (status == "Downloading" || status == "Extracting") && total > 0 && p.sum.update(id, status == "Extracting", done, total)
}

// reported is the phase of a pull by Docker's reports. Before the first one, the registry is to
// describe the image.
func (p *pulling) reported() layerPhase {
	phase := layerDone
	for _, l := range p.phases {
		phase = min(phase, l)
	}
	if len(p.phases) == 0 {
		return layerActive
	}
	return phase
}

// phase is layerActive, layerWaiting or layerDone. Docker gives its downloads to the pulls in
// their order, so a pull with a layer that Docker has asked for waits behind earlier ones.
func (s *pulls) phase(p *pulling) layerPhase {
	phase := p.reported()
	if phase != layerAsked {
		return phase
	}
	for _, other := range s.list {
		if 0 < other.begun && other.begun < p.begun && other.reported() != layerDone {
			return layerWaiting
		}
	}
	return layerActive
}

// tooSlow measures the rate of a pull when its registry was to send something for a window.
func (p *pulling) tooSlow(rules pullRules) *runtime.SlowPullError {
	if rules.minRate <= 0 || p.held < rules.window {
		return nil
	}
	bytes, over := p.sum.done-p.measured, p.held.Seconds()
	p.measured, p.held = p.sum.done, 0
	unreported := int64(0)
	for id, phase := range p.phases {
		if phase == layerActive { // Docker reports a download after every percent of it, and every 512 KiB
			unreported += min(p.sum.layer[id].total/100, 512<<10)
		}
	}
	if float64(bytes+unreported) >= float64(rules.minRate)*over {
		return nil
	}
	return &runtime.SlowPullError{Rate: int64(float64(bytes) / over), Least: rules.minRate}
}

// judge adds the time since the last call to a pull. It reports whether the pull waits for
// others, and an error if it is to be cancelled.
func (s *pulls) judge(p *pulling, now time.Time, passed time.Duration) (waits bool, slow *runtime.SlowPullError) {
	downloading := s.watchBlocked(now)
	switch s.phase(p) {
	case layerActive:
		p.held += passed
		return false, p.tooSlow(s.rules)
	case layerWaiting:
		return downloading, nil
	}
	return false, nil
}

// watchBlocked reports whether a pull downloads something. If Docker's downloads have been
// occupied for long, and by none of the pulls, the condition fails: by another program, or by a
// registry that does not respond to a pull that was cancelled (Docker 20.10 then waits on).
func (s *pulls) watchBlocked(now time.Time) (downloading bool) {
	waiting := false
	for _, p := range s.list {
		if p.begun == 0 {
			continue
		}
		phase := s.phase(p)
		downloading, waiting = downloading || phase == layerActive, waiting || phase == layerWaiting
	}
	switch {
	case !waiting || downloading:
		s.blockedAt = time.Time{}
		s.stuck.Set(nil)
	case s.blockedAt.IsZero():
		s.blockedAt = now
	case now.Sub(s.blockedAt) >= s.rules.blocked:
		s.stuck.Set(errPullsBlocked)
	}
	return downloading
}

var errPullsBlocked = errors.New("no image pull of codehub downloads anything, and Docker starts no download: another program pulls images, or a registry does not respond and Docker has to be restarted")

func (s *pulls) join(user string) *pulling {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &pulling{user: user}
	s.list = append(s.list, p)
	return p
}

func (s *pulls) leave(p *pulling) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(other *pulling) bool { return other == p })
	s.watchBlocked(time.Now())
}

// mayBegin reports whether a pull is its user's first, and begins it.
func (s *pulls) mayBegin(p *pulling) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, other := range s.list {
		switch {
		case other == p:
			s.given++
			p.begun = s.given
			return true
		case other.user == p.user:
			return false
		}
	}
	return false
}

// watch judges a pull until ctx ends.
func (s *pulls) watch(ctx context.Context, p *pulling, cancel context.CancelCauseFunc, progress func(runtime.Progress)) {
	t := time.NewTicker(s.rules.tick)
	defer t.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			s.mu.Lock()
			waits, slow := s.judge(p, now, now.Sub(last))
			if waits {
				engine.Report(progress, runtime.StepWaitingPull)
			}
			s.mu.Unlock()
			if last = now; slow != nil {
				cancel(slow)
			}
		}
	}
}

// pull fetches the image in the user's turn. If the image is not
// available, the error is a *runtime.PullError with Docker's message, and a
// *runtime.SlowPullError if its registry is too slow.
func (i *Images) pull(ctx context.Context, image, user string, progress func(runtime.Progress)) error {
	if why := i.notPulled(image); why != "" {
		return &runtime.PullError{Image: image, Message: why}
	}
	err := i.fetch(ctx, image, user, progress)
	var refused *runtime.PullError
	if errors.As(err, &refused) && (image == i.cfg.DefaultImage || image == i.cfg.IDEImage) {
		refused.Message = workspace.Cut(fmt.Sprintf(runtime.MsgNotPulled, image) + " " + refused.Message)
	}
	return err
}

func (i *Images) fetch(ctx context.Context, image, user string, progress func(runtime.Progress)) error {
	s := &i.pulls
	p := s.join(user)
	defer s.leave(p)
	for !s.mayBegin(p) { // the wait is bounded by the time limits of the pulls before it
		engine.Report(progress, runtime.StepWaitingPull)
		select {
		case <-time.After(s.rules.tick):
		case <-ctx.Done():
			return fmt.Errorf("pull %s: %w", image, context.Cause(ctx))
		}
	}
	limited, cancel := context.WithCancelCause(ctx)
	if limit := s.rules.timeout; limit > 0 {
		defer time.AfterFunc(limit, func() { cancel(&runtime.SlowPullError{Limit: limit}) }).Stop()
	}
	engine.Report(progress, runtime.StepPulling)
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(limited, p, cancel, progress) })
	err := i.pullOnce(limited, image, p, progress)
	cancel(nil)
	watching.Wait()
	if slow := new(runtime.SlowPullError); errors.As(err, &slow) {
		slow.Image = image
		return slow
	}
	if err != nil {
		return err
	}
	found, err := i.Here(ctx, image)
	if err == nil && found.ID == "" { // a truncated stream ends like a complete one
		err = &runtime.PullError{Image: image, Message: "the pull ended without an image"}
	}
	return err
}

func (i *Images) pullOnce(ctx context.Context, image string, p *pulling, progress func(runtime.Progress)) error {
	login := i.credentials(image)
	stream, err := i.API.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: login.encoded})
	if err != nil {
		return login.refusal(image, pullFailed(ctx, image, err))
	}
	defer stream.Close()
	for m, err := range stream.JSONMessages(ctx) {
		if err != nil {
			return login.refusal(image, pullFailed(ctx, image, err))
		}
		if m.Error != nil {
			return login.refusal(image, pullFailed(ctx, image, errors.New(m.Error.Message)))
		}
		var done, total int64
		if m.Progress != nil {
			done, total = m.Progress.Current, m.Progress.Total
		}
		i.pulls.mu.Lock()
		if p.layer(m.ID, m.Status, done, total) && progress != nil {
			progress(runtime.Progress{Step: runtime.StepPulling, Done: p.sum.done, Total: p.sum.total})
		}
		i.pulls.mu.Unlock()
	}
	if ctx.Err() != nil { // the end of the stream is then not Docker's
		return pullFailed(ctx, image, ctx.Err())
	}
	return nil
}

// fillsDisk reports whether a pull failed because Docker's disk is full, as opposed
// to a registry that reports such an error.
func fillsDisk(err error) bool {
	own := false
	for _, begins := range []string{"write /", "mkdir /", "open /", "failed to register layer: ", "failed to extract layer "} {
		own = own || strings.HasPrefix(err.Error(), begins)
	}
	return own && engine.NoSpace(err)
}
