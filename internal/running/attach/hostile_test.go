package attach_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/internal/running/attach"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
	"codehub/internal/testing/harness"
)

// withAgent returns a running workspace whose agent answers like this, and an attacher.
func withAgent(t *testing.T, answers agenttest.Answers, patience time.Duration) (*world, *attach.Attacher) {
	t.Helper()
	w, _ := newWorld(t)
	w.upstream = agenttest.Hostile(t, answers).Upstream
	return w, attach.New(attach.Config{Store: w, Runtime: w, Sessions: w, PerUser: 3, CheckInterval: time.Hour, Patience: patience})
}

// An agent of a version that this server does not speak is refused, and the error says what to
// do. Fields that a later version adds are ignored.
func TestVersionsOfAgents(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hello string
		ok    bool
	}{
		"this version":                          {`{"version":1,"oldest":1,"codehub":"1.0"}`, true},
		"later, and speaks this one":            {`{"version":2,"oldest":1,"codehub":"9.0","features":{"x":[1]}}`, true},
		"later":                                 {`{"version":2,"oldest":2,"codehub":"9.0"}`, false},
		"earlier":                               {`{"version":0,"oldest":0,"codehub":"0.1"}`, false},
		"none":                                  {`{}`, false},
		"negative":                              {`{"version":-1,"oldest":-1}`, false},
		"claims every version":                  {`{"version":9223372036854775807,"oldest":-9223372036854775808}`, true},
		"claims versions in the reversed order": {`{"version":1,"oldest":2}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, a := withAgent(t, agenttest.Answers{agent.PathHello: agenttest.Raw("HTTP/1.1 200 OK\r\n\r\n" + test.hello)}, harness.Patience)
			x, err := a.Attach(t.Context(), ann, id, nil)
			switch {
			case test.ok && err == nil:
				x.Close()
			case test.ok || !errors.Is(err, attach.ErrNoAgent) || !strings.Contains(err.Error(), "restart it"):
				t.Errorf("%v", err)
			}
		})
	}
}

// An attachment to an agent that breaks the protocol fails after a bounded time as
// unreachable, and does not stay open. The other ways to break it are in package agent.
func TestAttachToHostileAgent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hello agenttest.Answer
		want  error
	}{
		"silent":        {agenttest.Silent, agent.ErrUnreachable},
		"refuses":       {agenttest.Refused(http.StatusUnauthorized, "the secret is wrong"), agent.ErrUnreachable},
		"does not know": {agenttest.Refused(http.StatusNotFound, "there is none"), attach.ErrNoAgent},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			patience := 300 * time.Millisecond // in vain
			if test.want == attach.ErrNoAgent {
				patience = harness.Patience
			}
			_, a := withAgent(t, agenttest.Answers{agent.PathHello: test.hello}, patience)
			for range 4 { // one more than a user may have
				if _, err := a.Attach(t.Context(), ann, id, nil); !errors.Is(err, test.want) {
					t.Error(err)
				}
			}
		})
	}
}

// A refusal to report what the workspace uses is an agent that does not work, not the server's
// own error.
func TestUsageOfHostileAgent(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]error{http.StatusNotFound: attach.ErrNoAgent, http.StatusUnauthorized: agent.ErrUnreachable, http.StatusTeapot: agent.ErrUnreachable} {
		_, a := withAgent(t, agenttest.Answers{agent.PathUsage: agenttest.Refused(status, "no")}, harness.Patience)
		if _, err := a.Usage(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("%d: %v", status, err)
		}
		if _, err := a.Load(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("%d: %v", status, err)
		}
	}
}
