// Package health keeps the conditions of a server: Docker does not respond, a disk
// is full, a flush fails. A condition is logged when it begins, when its error
// becomes one of another kind, and when it ends; /readyz, /metrics and the
// administrators' page list it meanwhile.
package health

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
)

// Monitor is the conditions of one server. It is safe for concurrent use. On a nil
// Monitor, New makes conditions that are logged and not listed.
type Monitor struct {
	// Rename is how names of Config are listed, where that is another name. Err takes both.
	Rename map[string]string

	mu   sync.Mutex
	list []*Condition
}

// Config describes a condition.
type Config struct {
	// Name is what /readyz and /metrics call it. Several components may report
	// one name; it fails while any of them does.
	Name string
	// Failing and Resolved are the log messages of its beginning and its end. An
	// empty Resolved logs no end.
	Failing, Resolved string
	Level             slog.Level    // of Failing
	Remind            time.Duration // after which a condition that lasts is logged again; 0: never
	Log               *slog.Logger  // nil: none
}

// State is the state of all conditions of one name.
type State struct {
	Name    string
	Since   time.Time // when it began; zero: it is not failing
	Error   string    // one line; empty: it is not failing
	Unknown bool      // it does not fail, and a first check has not ended; see Await
}

// Condition is reported by one component. It is safe for concurrent use.
type Condition struct {
	cfg Config

	mu     sync.Mutex
	awaits bool // the first Set
	err    error
	since  time.Time
	logged time.Time // last
	kinds  []string  // of error, that were logged since it began
}

// maxKinds bounds how many kinds of error one failing condition logs.
const maxKinds = 8

// New makes a condition that does not fail and lists it on m.
func (m *Monitor) New(cfg Config) *Condition {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Condition{cfg: cfg}
	if m != nil {
		c.cfg.Name = cmp.Or(m.Rename[cfg.Name], cfg.Name)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.list = append(m.list, c)
	}
	return c
}

// Set takes the condition's present error, nil if it does not fail, and logs what
// is new in it with attrs. It reports whether the condition began or ended.
func (c *Condition) Set(err error, attrs ...any) (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaits = false
	now, was := time.Now(), c.err
	if c.err = err; err == nil {
		if was == nil {
			return false
		}
		if c.cfg.Resolved != "" {
			c.cfg.Log.Info(c.cfg.Resolved, append(attrs, "after", now.Sub(c.since).Round(time.Millisecond))...)
		}
		c.since, c.kinds = time.Time{}, nil
		return true
	}
	if was == nil {
		c.since = now
	}
	known := !c.isNew(kind(err.Error()))
	if !known || c.cfg.Remind > 0 && now.Sub(c.logged) >= c.cfg.Remind {
		c.logged = now
		c.cfg.Log.Log(context.Background(), c.cfg.Level, c.cfg.Failing, append(attrs, "err", err)...)
	}
	return was == nil
}

func (c *Condition) isNew(kind string) bool {
	if len(c.kinds) == maxKinds || slices.Contains(c.kinds, kind) {
		return false
	}
	c.kinds = append(c.kinds, kind)
	return true
}

// Reset forgets an error without a log, for a component that stops watching.
func (c *Condition) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaits, c.err, c.since, c.kinds = false, nil, time.Time{}, nil
}

// Await reports the condition as unknown until it is set or reset.
func (c *Condition) Await() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaits = true
}

// Err returns the present error; nil if the condition does not fail.
func (c *Condition) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Text returns the present error's text; empty if the condition does not fail.
func (c *Condition) Text() string {
	if err := c.Err(); err != nil {
		return err.Error()
	}
	return ""
}

func (c *Condition) state() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := State{Name: c.cfg.Name, Since: c.since, Unknown: c.awaits && c.err == nil}
	if c.err != nil {
		s.Error = oneLine(c.err.Error())
	}
	return s
}

// States lists all names in order. Of several conditions of a name it has the
// error that has lasted longest, and is unknown if one is and none fails.
func (m *Monitor) States() []State {
	m.mu.Lock()
	list := slices.Clone(m.list)
	m.mu.Unlock()
	states := make([]State, len(list))
	for i, c := range list {
		states[i] = c.state()
	}
	slices.SortStableFunc(states, func(a, b State) int {
		order := func(s State) int {
			switch {
			case s.Error != "":
				return 0
			case s.Unknown:
				return 1
			}
			return 2
		}
		return cmp.Or(cmp.Compare(a.Name, b.Name), order(a)-order(b), a.Since.Compare(b.Since))
	})
	return slices.CompactFunc(states, func(a, b State) bool { return a.Name == b.Name })
}

// Err returns the error of the conditions of a name; nil if none fails.
func (m *Monitor) Err(name string) error {
	name = cmp.Or(m.Rename[name], name)
	for _, s := range m.States() {
		if s.Name == name && s.Error != "" {
			return errors.New(s.Error)
		}
	}
	return nil
}

// kind is an error's text without numbers, which change while the cause does not.
func kind(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, text)
}

// maxText bounds the error of a State.
const maxText = 500

func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if r := []rune(text); len(r) > maxText {
		text = string(r[:maxText]) + "…"
	}
	return text
}

var failing = prometheus.NewDesc("codehub_condition", "1 while the condition fails, otherwise 0.", []string{"name"}, nil)

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(out chan<- *prometheus.Desc) { out <- failing }

// Collect implements prometheus.Collector.
func (m *Monitor) Collect(out chan<- prometheus.Metric) {
	for _, s := range m.States() {
		v := 0.0
		if s.Error != "" {
			v = 1
		}
		out <- prometheus.MustNewConstMetric(failing, prometheus.GaugeValue, v, s.Name)
	}
}

// Error returns an error with text; nil if text is empty.
func Error(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
