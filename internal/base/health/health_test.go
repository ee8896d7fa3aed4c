package health

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// recorder returns a logger, and a function that returns what was logged since its
// last call.
func recorder() (*slog.Logger, func() string) {
	var b bytes.Buffer
	h := slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	return slog.New(h), func() string {
		s := strings.TrimSpace(b.String())
		b.Reset()
		return s
	}
}

func TestConditionLogsBeginningKindAndEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, logged := recorder()
		c := new(Monitor).New(Config{Name: "docker", Failing: "Docker failed", Resolved: "Docker recovered", Level: slog.LevelError, Log: log})
		for i, step := range []struct {
			err     error
			changed bool
			want    string
		}{
			{nil, false, ""},
			{errors.New("refused, try 1"), true, `level=ERROR msg="Docker failed" on=a err="refused, try 1"`},
			{errors.New("refused, try 2"), false, ""},
			{errors.New("timeout"), false, `level=ERROR msg="Docker failed" on=a err=timeout`},
			{errors.New("refused, try 3"), false, ""}, // logged before
			{nil, true, `level=INFO msg="Docker recovered" on=a after=4s`},
			{nil, false, ""},
			{errors.New("timeout"), true, `level=ERROR msg="Docker failed" on=a err=timeout`},
		} {
			if changed := c.Set(step.err, "on", "a"); changed != step.changed {
				t.Errorf("step %d: changed %v", i, changed)
			}
			if got := logged(); got != step.want {
				t.Errorf("step %d: logged %q, want %q", i, got, step.want)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestConditionLogsReminder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, logged := recorder()
		c := (*Monitor)(nil).New(Config{Failing: "failed", Level: slog.LevelWarn, Remind: time.Minute, Log: log})
		lines := 0
		for range 181 {
			c.Set(errors.New("x"))
			if logged() != "" {
				lines++
			}
			time.Sleep(time.Second)
		}
		if lines != 4 {
			t.Errorf("logged %d times in three minutes, want 4", lines)
		}
	})
}

func TestConditionBoundsKinds(t *testing.T) {
	t.Parallel()
	log, logged := recorder()
	c := (*Monitor)(nil).New(Config{Failing: "failed", Log: log})
	for i := range 100 {
		c.Set(errors.New(strings.Repeat("x", i)))
	}
	if n := strings.Count(logged(), "msg=failed"); n != maxKinds {
		t.Errorf("logged %d kinds, want %d", n, maxKinds)
	}
}

func TestConditionReset(t *testing.T) {
	t.Parallel()
	log, logged := recorder()
	c := (*Monitor)(nil).New(Config{Failing: "failed", Resolved: "resolved", Log: log})
	c.Set(errors.New("x"))
	logged()
	if c.Reset(); c.Err() != nil || c.Text() != "" || logged() != "" {
		t.Error("not reset in silence")
	}
	if !c.Set(errors.New("x")) || logged() == "" {
		t.Error("a condition that begins after a reset is not logged")
	}
}

func TestMonitorListsConditions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := new(Monitor)
		disk := m.New(Config{Name: "disk"})
		first, second := m.New(Config{Name: "docker"}), m.New(Config{Name: "docker"})
		if diff := cmp.Diff([]State{{Name: "disk"}, {Name: "docker"}}, m.States()); diff != "" {
			t.Error(diff)
		}
		second.Set(errors.New("a\n  b"))
		began := time.Now()
		time.Sleep(time.Second)
		first.Set(errors.New("later"))
		disk.Set(errors.New(strings.Repeat("é", 1000)))
		want := []State{{Name: "disk", Since: time.Now(), Error: strings.Repeat("é", maxText) + "…"}, {Name: "docker", Since: began, Error: "a b"}}
		if diff := cmp.Diff(want, m.States()); diff != "" {
			t.Error(diff)
		}
		second.Set(nil)
		if err := m.Err("docker"); err == nil || err.Error() != "later" {
			t.Errorf("got %v, want the other component's error", err)
		}
		first.Set(nil)
		if err := m.Err("docker"); err != nil {
			t.Error(err)
		}
		if err := m.Err("unknown"); err != nil {
			t.Error(err)
		}
	})
}

func TestMonitorMetrics(t *testing.T) {
	t.Parallel()
	m := new(Monitor)
	m.New(Config{Name: "disk"}).Set(errors.New("full"))
	m.New(Config{Name: "docker"})
	m.New(Config{Name: "docker"})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "codehub_condition" {
		t.Fatalf("%v: %v", err, families)
	}
	got := map[string]float64{}
	for _, metric := range families[0].GetMetric() {
		got[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
	}
	if diff := cmp.Diff(map[string]float64{"disk": 1, "docker": 0}, got); diff != "" {
		t.Error(diff)
	}
}

func TestMonitorIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	m := new(Monitor)
	var wg sync.WaitGroup
	for i := range 8 {
		c := m.New(Config{Name: fmt.Sprint(i % 4), Failing: "x", Log: slog.New(slog.DiscardHandler)})
		for range 2 {
			wg.Go(func() {
				for n := range 200 {
					if n%3 == 0 {
						c.Set(nil)
					} else {
						c.Set(fmt.Errorf("err %d", n))
					}
					_, _ = m.States(), m.Err("1")
				}
			})
		}
	}
	wg.Wait()
	if n := len(m.States()); n != 4 {
		t.Errorf("%d names", n)
	}
}

// A condition is unknown until its first check has ended.
func TestConditionIsUnknownUntilChecked(t *testing.T) {
	t.Parallel()
	var m Monitor
	one, two := m.New(Config{Name: "disk"}), m.New(Config{Name: "disk"})
	state := func() State { return m.States()[0] }
	if state().Unknown {
		t.Error("unknown although nothing checks it")
	}
	one.Await()
	two.Await()
	one.Set(nil)
	if !state().Unknown {
		t.Error("known before both were checked")
	}
	one.Set(errors.New("full"))
	if s := state(); s.Unknown || s.Error != "full" {
		t.Errorf("one fails: %+v", s)
	}
	one.Set(nil)
	two.Reset()
	if state().Unknown {
		t.Error("unknown although nothing checks it any more")
	}
}

// On Kubernetes, the condition of the runtime is not listed as Docker's.
func TestRename(t *testing.T) {
	t.Parallel()
	m := &Monitor{Rename: map[string]string{"docker": "kubernetes"}}
	m.New(Config{Name: "docker"}).Set(errors.New("away"))
	m.New(Config{Name: "disk"})
	if s := m.States(); len(s) != 2 || s[0].Name != "disk" || s[1].Name != "kubernetes" {
		t.Errorf("%+v", s)
	}
	if m.Err("docker") == nil || m.Err("kubernetes") == nil || m.Err("disk") != nil {
		t.Error("the condition is not found by both names")
	}
}
