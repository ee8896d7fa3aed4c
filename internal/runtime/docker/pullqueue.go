package docker

import (
	"slices"
	"time"
)

// Docker downloads a fixed number of layers at once (three by default) for all pulls
// together, in the order in which they were requested. A slow registry can occupy
// all of them with the layers of one image. So each user has one pull at a time, a
// pull that is too slow is cancelled, and a pull whose user has used the downloads
// longer than another user who waits for them is set back.

// pullRules are the limits of image pulls.
type pullRules struct {
	minRate  int64         // bytes per second; 0: no minimum
	timeout  time.Duration // longest time for which Docker may work on a pull
	window   time.Duration // over which the rate is measured
	patience time.Duration // how long a pull waits for another user's downloads before one is set back
	turn     time.Duration // by how much longer that user must have used them; doubles each time a pull is set back
	blocked  time.Duration // how long no pull may download anything before that is reported
	forget   time.Duration // after which the use of a user without pulls is forgotten
}

const (
	// rateBytes is how much a pull at the minimum rate downloads in one window:
	// several times what Docker downloads between two reports.
	rateBytes    = 2 << 20
	minWindow    = 10 * time.Second
	maxWindow    = 5 * time.Minute
	pullPatience = 5 * time.Second
	pullTurn     = 10 * time.Second
	pullForget   = 10 * time.Minute
	pullBlocked  = 30 * time.Second
)

func newPullRules(s Settings) pullRules {
	window := maxWindow
	if s.PullBytesPerSecond > 0 {
		window = min(max(time.Duration(rateBytes/s.PullBytesPerSecond)*time.Second, minWindow), maxWindow)
	}
	return pullRules{
		minRate: s.PullBytesPerSecond, timeout: s.PullTimeout, window: window,
		patience: pullPatience, turn: pullTurn, forget: pullForget, blocked: pullBlocked,
	}
}

// pullQueue decides which pulls Docker works on. It has no clock and no effects, and
// is not safe for concurrent use.
type pullQueue struct {
	rules     pullRules
	list      []*queuedPull       // in the order of their requests
	used      map[string]*pullUse // by user
	blockedAt time.Time           // since when every pull waits for downloads; zero: one does not
	given     int                 // how many pulls Docker was given
	reported  int                 // how many layers Docker has reported
	waiting   int                 // which of these was reported first of those that wait; 0: none waits
	at        time.Time           // of the last call of judge
}

// pullUse is for how long a user's pulls have used Docker's downloads.
type pullUse struct {
	time time.Duration
	last time.Time // when the user last had a pull
}

// queuedPull is one pull. The caller changes it only through its methods.
type queuedPull struct {
	queue *pullQueue
	user  string

	running bool // Docker works on it
	started int  // its place in the order in which Docker was given the pulls
	leaving bool // it was stopped, and Docker's call has not returned
	stopped bool // it was stopped for good

	layers  map[string]layerPhase
	orders  map[string]int   // of the layers' first reports, see pullQueue.reported
	grains  map[string]int64 // what Docker may have downloaded of a layer since its last report
	bytes   int64            // downloaded in this run
	worked  time.Duration    // in all runs
	held    time.Duration    // in this run: how long the registry was to send something
	samples []pullSample

	starved time.Time   // since when it waits for downloads of others; zero: it does not
	behind  *queuedPull // the pull for which it was set back
	yields  int
}

type pullSample struct {
	held  time.Duration
	bytes int64
}

type layerPhase int

const (
	layerWaiting layerPhase = iota // for one of Docker's downloads
	layerActive                    // it occupies one
	layerDone
	layerAsked // it does one of the two: Docker may fail to report that a layer waits (Docker 20.10)
)

// verdict is what to do with a pull.
type verdict struct {
	pull *queuedPull
	kind verdictKind
	rate int64 // bytes per second; of pullTooSlow
}

type verdictKind int

const (
	pullStart verdictKind = iota
	pullSetBack
	pullTooSlow
	pullTooLong
)

func (q *pullQueue) add(user string) *queuedPull {
	p := &queuedPull{queue: q, user: user}
	q.list = append(q.list, p)
	return p
}

// remove ends a pull. Docker's call has returned.
func (q *pullQueue) remove(p *queuedPull) {
	q.list = slices.DeleteFunc(q.list, func(other *queuedPull) bool { return other == p })
	p.running, p.stopped = false, true
}

// left records that Docker's call has returned.
func (q *pullQueue) left(p *queuedPull) { p.leaving = false }

// layer records Docker's report on a layer.
func (p *queuedPull) layer(id string, phase layerPhase, size int64) {
	if p.layers == nil {
		p.layers, p.orders, p.grains = map[string]layerPhase{}, map[string]int{}, map[string]int64{}
	}
	if p.orders[id] == 0 {
		p.queue.reported++
		p.orders[id] = p.queue.reported
	}
	p.layers[id] = phase
	// Docker reports a download after every percent of it, and every 512 KiB.
	p.grains[id] = 0
	if phase == layerActive {
		p.grains[id] = min(size/100, 512<<10)
	}
}

// downloaded records how many bytes were downloaded in this run.
func (p *queuedPull) downloaded(bytes int64) { p.bytes = max(p.bytes, bytes) }

// phase returns the phase of the furthest layer that is not done. known is false
// before Docker has reported any layer.
func (p *queuedPull) phase() (phase layerPhase, known bool) {
	phase = layerDone
	for id, l := range p.layers {
		if l == layerAsked {
			// Docker gives its downloads to the layers in the order in which it reports them first.
			l = layerActive
			if first := p.queue.waiting; first > 0 && first < p.orders[id] {
				l = layerWaiting
			}
		}
		if l == layerActive {
			return layerActive, true
		}
		phase = min(phase, l)
	}
	return phase, len(p.layers) > 0
}

// findWaiting finds the layer that has waited longest of those that Docker reports as waiting.
func (q *pullQueue) findWaiting() {
	q.waiting = 0
	for _, p := range q.list {
		for id, l := range p.layers {
			if at := p.orders[id]; p.running && l == layerWaiting && (q.waiting == 0 || at < q.waiting) {
				q.waiting = at
			}
		}
	}
}

// holder reports whether the pull occupies downloads of Docker. If every pull waits,
// the one that was started first does: Docker reports a layer as waiting until its
// registry responds.
func (q *pullQueue) holder(p *queuedPull) bool {
	phase, known := p.phase()
	switch {
	case !p.running || !known || phase == layerDone:
		return false
	case phase == layerActive:
		return true
	case q.anyActive():
		return false
	}
	for _, other := range q.list {
		if phase, known := other.phase(); other.running && known && phase == layerWaiting && other.started < p.started {
			return false
		}
	}
	return true
}

func (q *pullQueue) anyActive() bool {
	return slices.ContainsFunc(q.list, func(p *queuedPull) bool {
		phase, known := p.phase()
		return p.running && known && phase == layerActive
	})
}

// judge returns what to do now. A pull for which it returns pullStart counts as
// running, and one that it stops as leaving until left or remove is called.
func (q *pullQueue) judge(now time.Time) []verdict {
	q.account(now)
	var out []verdict
	for _, p := range q.list {
		if v, stop := q.overdue(p); stop {
			p.running, p.leaving, p.stopped = false, true, true
			out = append(out, v)
		}
	}
	if p, other := q.unfair(now); p != nil {
		p.running, p.leaving = false, true
		p.yields++
		p.behind, other.behind = other, nil
		p.starved = now
		out = append(out, verdict{pull: p, kind: pullSetBack})
	}
	for _, p := range q.list {
		if q.mayStart(p) {
			q.given++
			p.running, p.started, p.behind, p.starved = true, q.given, nil, time.Time{}
			p.layers, p.orders, p.bytes, p.held, p.samples = nil, nil, 0, 0, []pullSample{{}}
			out = append(out, verdict{pull: p, kind: pullStart})
		}
	}
	return out
}

// account adds the time since the last call to the pulls and their users.
func (q *pullQueue) account(now time.Time) {
	q.findWaiting()
	passed := now.Sub(q.at)
	if q.at.IsZero() || passed < 0 {
		passed = 0
	}
	q.at = now
	if q.used == nil {
		q.used = map[string]*pullUse{}
	}
	for user, use := range q.used {
		if now.Sub(use.last) > q.rules.forget {
			delete(q.used, user)
		}
	}
	holders := map[*queuedPull]bool{}
	for _, p := range q.list {
		holders[p] = p.running && q.holder(p)
	}
	waiting := false
	for _, p := range q.list {
		phase, known := p.phase()
		waiting = waiting || p.running && known && phase == layerWaiting
	}
	switch {
	case !waiting || q.anyActive():
		q.blockedAt = time.Time{}
	case q.blockedAt.IsZero():
		q.blockedAt = now
	}
	for _, p := range q.list {
		use := q.used[p.user]
		if use == nil {
			use = &pullUse{}
			q.used[p.user] = use
		}
		use.last = now
		phase, known := p.phase()
		waits := p.running && known && phase == layerWaiting && !holders[p] || !p.running && p.behind != nil
		switch {
		case !waits:
			p.starved = time.Time{}
		case p.starved.IsZero():
			p.starved = now
		}
		if !p.running {
			continue
		}
		p.worked += passed
		if holders[p] {
			use.time += passed
		}
		if known && phase == layerActive || !known { // also until the registry describes the image
			p.held += passed
			p.sample(q.rules.window)
		}
	}
}

// blocked reports whether Docker's downloads have been occupied for long, and by none
// of these pulls: by another program, or by a registry that does not respond to a pull
// that was cancelled (Docker then waits on).
func (q *pullQueue) blocked() bool {
	return !q.blockedAt.IsZero() && q.at.Sub(q.blockedAt) >= q.rules.blocked
}

// sample records the present progress and forgets what is older than the window.
func (p *queuedPull) sample(window time.Duration) {
	if last := p.samples[len(p.samples)-1]; p.held-last.held >= window/20 {
		p.samples = append(p.samples, pullSample{held: p.held, bytes: p.bytes})
	}
	for len(p.samples) > 1 && p.held-p.samples[1].held >= window {
		p.samples = p.samples[1:]
	}
}

// overdue returns why a running pull is to be cancelled.
func (q *pullQueue) overdue(p *queuedPull) (verdict, bool) {
	if !p.running {
		return verdict{}, false
	}
	if q.rules.timeout > 0 && p.worked >= q.rules.timeout {
		return verdict{pull: p, kind: pullTooLong}, true
	}
	over := p.held - p.samples[0].held
	phase, known := p.phase()
	if q.rules.minRate <= 0 || over < q.rules.window || known && phase == layerDone {
		return verdict{}, false
	}
	bytes := p.bytes - p.samples[0].bytes
	unreported := int64(0)
	for _, grain := range p.grains {
		unreported += grain
	}
	if float64(bytes+unreported) >= float64(q.rules.minRate)*over.Seconds() {
		return verdict{}, false
	}
	return verdict{pull: p, kind: pullTooSlow, rate: int64(float64(bytes) / over.Seconds())}, true
}

// unfair returns the pull to set back, and the one of another user that waits for its
// downloads. Only the user with the most use is set back, and only for one who has
// used the downloads for much less time.
func (q *pullQueue) unfair(now time.Time) (p, waiting *queuedPull) {
	for _, s := range q.list {
		if s.stopped || s.leaving || s.starved.IsZero() || now.Sub(s.starved) < q.rules.patience {
			continue
		}
		for _, h := range q.list {
			if h.user == s.user || !h.running || h.stopped || !q.holder(h) {
				continue
			}
			lead := q.used[h.user].time - q.used[s.user].time
			if lead >= q.rules.turn<<min(h.yields, 16) && (p == nil || q.used[h.user].time > q.used[p.user].time) {
				p, waiting = h, s
			}
		}
	}
	return p, waiting
}

// mayStart reports whether Docker may begin with a pull now: it is its user's first,
// and the pull for which it was set back does not run any more.
func (q *pullQueue) mayStart(p *queuedPull) bool {
	if p.running || p.leaving || p.stopped || p.behind != nil && p.behind.running {
		return false
	}
	for _, other := range q.list {
		if other == p {
			return true
		}
		if other.user == p.user {
			return false
		}
	}
	return false
}

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
