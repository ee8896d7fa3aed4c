package e2e

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/testing/e2e/proc"
)

// A workspace whose port a user forwards receives no session of the user, wherever its page
// leads the browser: cookies know no port, but no name of codehub's leads to the forwarded one.
// Where it listens on 127.0.0.1 instead, the same page gets them.
func TestForwardedPortGetsNoSession(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_DELETE_GRACE=0s")
	id := s.create(api.CreateWorkspace{Name: "hostile"})
	s.awaitPhase(id, "RUNNING")
	s.serveIn(id, ":3000")

	listen, err := proc.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listen)
	_, own, _ := net.SplitHostPort(strings.TrimPrefix(s.URL, "http://"))
	b := newBrowserAt(t, []string{s.URL, "http://127.0.0.1:" + port, "http://127.0.0.2:" + port})
	b.login("http://localhost:"+own, proc.AdminPassword)
	const request = `document.querySelector('#request')`
	b.do("log in at a host of codehub's own", until(`location.origin === '`+s.URL+`' && document.querySelector('#username') === null`))
	b.do("enter the workspace", navigate(s.URL+"/w/"+id+"/"), until(`location.origin === '`+s.originOf(id)+`' && `+request+` !== null`))

	leave := s.forward(id, port+":3000", "127.0.0.2:"+port)
	b.do("open the printed address", navigate("http://127.0.0.2:"+port+"/"), until(request+`?.textContent.includes('Cookie') === false`))
	names := []string{"localhost", "codehub.localhost", id + ".localhost", "127.0.0.1"}
	for _, name := range names {
		b.do("open the printed address again", navigate("http://127.0.0.2:"+port+"/"), until(request+` !== null`))
		b.do("be led to "+name, until(`(location.href = 'http://`+name+`:`+port+`/', true)`), until(`location.protocol === 'chrome-error:' || `+request+` !== null && location.hostname !== '127.0.0.2'`))
		b.do("find nothing at "+name, until(`location.protocol === 'chrome-error:'`))
	}
	leave()

	leave = s.forward(id, port+":3000", "127.0.0.1:"+port, "--address", "127.0.0.1")
	defer leave()
	for name, cookie := range map[string]string{"codehub.localhost": session, id + ".localhost": "codehub_workspace"} {
		b.do("open the port at "+name, navigate("http://"+name+":"+port+"/"), until(request+`?.textContent.includes('`+cookie+`=')`))
	}
	b.do("open it at localhost, where codehub has no cookies", navigate("http://localhost:"+port+"/"), until(request+`?.textContent.includes('Cookie') === false`))
}

// forward forwards a port until leave is called, and waits for it to listen.
func (s *server) forward(id, ports, want string, flags ...string) (leave func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	cmd := exec.CommandContext(ctx, env.binary, append([]string{"port-forward", id, ports}, flags...)...)
	cmd.Env = append(os.Environ(), "CODEHUB_URL="+s.URL, "CODEHUB_SESSION_TOKEN="+s.token)
	out, err := cmd.StderrPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	leave = func() { cancel(); _ = cmd.Wait() }
	s.Cleanup(leave)
	line, err := bufio.NewReader(out).ReadString('\n')
	if !strings.HasPrefix(line, want+" leads to port") {
		s.Fatalf("port-forward: %q %v", line, err)
	}
	return leave
}

// On localhost a second account is refused, unless it is allowed.
func TestLocalServerHasOneAccount(t *testing.T) {
	t.Parallel()
	s := startQuick(t, "CODEHUB_ALLOW_HTTP=false")
	_, err := s.api.CreateAccount(t.Context(), api.CreateAccount{Username: "bob", Password: "correct horse battery"})
	if codehub.CodeOf(err) != "one_account" || !strings.Contains(err.Error(), "Set CODEHUB_URL to an https address") {
		t.Fatalf("a second account: %v", err)
	}
}
