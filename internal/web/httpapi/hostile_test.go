package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"codehub/api"
	"codehub/client"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/agenttest"
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
