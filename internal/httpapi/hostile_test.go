package httpapi

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"codehub/api"
	"codehub/client"
	"codehub/internal/agent"
	"codehub/internal/agent/agenttest"
	"codehub/internal/workspace"
)

// evil is what a terminal or a page would interpret, and what is not UTF-8.
const evil = "\x1b[2J\x1b]0;title\x07<script>alert(1)</script>\u202e\r\n\xff"

// steers reports whether a terminal would interpret a text.
func steers(text string) bool { return strings.ContainsAny(text, "\x1b\x07\r\n\u202e") }

// A command ends with an error that says what helps, or with an exit status that a command can
// have, whatever the workspace's agent is.
func TestExecWithHostileAgent(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	c := e.client(e.ann)
	frames := func(list ...agent.Frame) agenttest.Answer {
		return agenttest.Upgraded(agenttest.Raw(agenttest.Frames(list...)))
	}
	exits := func(text string) agent.Frame { return agent.Frame{Kind: agent.FrameExit, Payload: []byte(text)} }
	for name, tc := range map[string]struct {
		answers agenttest.Answers
		code    int
		err     string // the error's code
		says    string
	}{
		"later version":       {agenttest.Answers{agent.PathHello: agenttest.JSON(agent.Hello{Version: 2, Oldest: 2})}, 0, "no_agent", "started by another version of codehub. Restart it."},
		"earlier version":     {agenttest.Answers{agent.PathHello: agenttest.JSON(agent.Hello{})}, 0, "no_agent", "started by another version of codehub. Restart it."},
		"not an agent":        {agenttest.Answers{agent.PathHello: agenttest.Refused(http.StatusNotFound, "")}, 0, "no_agent", "Restart it."},
		"refused with a text": {agenttest.Answers{agent.PathExec: agenttest.Refused(http.StatusTeapot, strings.Repeat(evil, 100))}, 0, "command_not_started", "could not be started"},
		"ends at once":        {agenttest.Answers{agent.PathExec: agenttest.Upgraded(agenttest.Raw(""))}, 0, "unavailable", ""},
		"frame is too long":   {agenttest.Answers{agent.PathExec: agenttest.Upgraded(agenttest.Raw("o\xff\xff\xff\xff"))}, 0, "unavailable", ""},
		"success by 256":      {agenttest.Answers{agent.PathExec: frames(exits(`{"code":256}`))}, 255, "", ""},
		"exit twice":          {agenttest.Answers{agent.PathExec: frames(exits(`{"code":3}`), exits(`{"code":0}`))}, 3, "", ""},
		"signal of escapes":   {agenttest.Answers{agent.PathExec: frames(agent.Frame{Kind: 'z'}, exits(`{"code":7,"signal":"\u001b[2J"}`))}, 7, "", ""},
	} {
		e.agents.Replace(ws.ID, tc.answers)
		_, _, code, err := e.run(c, ws.ID, api.Exec{Args: []string{"true"}}, "")
		text := ""
		if err != nil {
			text = err.Error()
		}
		if code != tc.code || client.CodeOf(err) != tc.err || !strings.Contains(text, tc.says) || steers(text) || len(text) > 1000 {
			t.Errorf("%s: %d, %s, %q", name, code, client.CodeOf(err), text)
		}
	}
}

// A command on an agent that does not answer ends with the access of its user.
func TestExecWithSilentAgent(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	for name, answer := range map[string]agenttest.Answer{"before it starts": agenttest.Silent, "after it has started": agenttest.Upgraded(agenttest.Silent)} {
		asked := make(chan struct{}, 1)
		e.agents.Replace(ws.ID, agenttest.Answers{agent.PathExec: func(c *agenttest.Call) { asked <- struct{}{}; answer(c) }})
		p := e.enter("ann")
		conn := e.dial(p, ws.ID, nil)
		writeText(t, conn, api.Exec{Shell: "cat"})
		<-asked
		if err := e.Auth.Logout(t.Context(), p.Caller); err != nil {
			t.Fatal(err)
		}
		if code := lastError(t, conn); code != "unauthenticated" {
			t.Errorf("%s: %s", name, code)
		}
		conn.CloseNow()
	}
}

// What a hostile agent reports is within limits, and readable; what it refuses is no error of the
// server's own.
func TestUsageOfHostileAgent(t *testing.T) {
	t.Parallel()
	e := newExecEnv(t)
	ws, _ := e.running(e.ann, "site")
	path := "/workspaces/" + string(ws.ID) + "/usage"
	e.agents.Replace(ws.ID, agenttest.Answers{agent.PathUsage: agenttest.JSON(agent.Usage{
		CPUSeconds: math.MaxFloat64, CPULimit: -1, Memory: math.MinInt64, MemoryLimit: math.MaxInt64, Disk: -5, Processes: math.MinInt,
		Holders: append(make([]agent.Holder, 1000), agent.Holder{What: "last"}),
	})})
	u := read[api.Usage](t, e.want(http.StatusOK, "", "GET", path, "", as(e.ann)))
	if u.CPU < 0 || u.CPULimit != 0 || u.Memory != 0 || u.Disk != 0 || u.Processes != 0 || len(u.Holders) != agent.MaxHolders {
		t.Errorf("%+v", u)
	}
	e.agents.Replace(ws.ID, agenttest.Answers{agent.PathUsage: agenttest.JSON(agent.Usage{Holders: []agent.Holder{{What: evil + strings.Repeat("x", 1000), Since: math.MaxInt64}}})})
	u = read[api.Usage](t, e.want(http.StatusOK, "", "GET", path, "", as(e.ann)))
	if len(u.Holders) != 1 || steers(u.Holders[0].What) || len(u.Holders[0].What) > 250 {
		t.Errorf("%+v", u.Holders)
	}
	for status, code := range map[int]string{http.StatusNotFound: "no_agent", http.StatusUnauthorized: "unavailable", http.StatusTeapot: "unavailable"} {
		e.agents.Replace(ws.ID, agenttest.Answers{agent.PathUsage: agenttest.Refused(status, evil)})
		want := map[string]int{"no_agent": http.StatusConflict, "unavailable": http.StatusServiceUnavailable}[code]
		e.want(want, code, "GET", path, "", as(e.ann))
	}
}

// A list of ports has what people and JSON can read, and no ports that do not exist; a connection
// that the agent refuses is no error of the server's own.
func TestPortsOfHostileAgent(t *testing.T) {
	t.Parallel()
	e, c, _, ws := portEnv(t, workspace.VisiblePublic)
	path, me := "/workspaces/"+string(ws.ID)+"/ports", as(e.ann)
	hostile := func(answers agenttest.Answers) {
		up := agenttest.Hostile(t, answers).Upstream
		up.ContainerID = "c"
		c.set(&up)
	}
	hostile(agenttest.Answers{agent.PathPorts: agenttest.JSON(agent.Ports{Ports: []agent.Port{
		{Port: 3000, Process: evil, PID: -1, Since: math.MaxInt64}, {Port: -3}, {Port: 70000}, {Port: 61080, Process: "the agent's own"}, {Port: 3000},
	}})})
	list := read[api.PortList](t, e.want(http.StatusOK, "", "GET", path, "", me))
	if len(list.Ports) != 1 || list.Ports[0].Port != 3000 || steers(list.Ports[0].Process) || list.Ports[0].Since == nil || list.Ports[0].Since.After(time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)) {
		t.Errorf("%+v", list)
	}
	programs, _ := e.tokenClient(e.ann)
	for name, answers := range map[string]agenttest.Answers{
		"refused":      {agent.PathDial: agenttest.Refused(http.StatusBadGateway, evil)},
		"wrong secret": {agent.PathDial: agenttest.Refused(http.StatusUnauthorized, evil)},
	} {
		hostile(answers)
		_, err := programs.ConnectPort(t.Context(), string(ws.ID), 3000)
		var refused *client.Error
		if !errors.As(err, &refused) || refused.Code != "unavailable" || steers(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
