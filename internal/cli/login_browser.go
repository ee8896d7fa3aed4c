package cli

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"codehub/api"
	"codehub/client"
	"codehub/internal/cli/terminal"
)

// browserPatience is how long the user may take in the browser.
const browserPatience = 10 * time.Minute

// withBrowser logs in by a browser on this machine: the user allows it on the dashboard,
// and the browser brings a code to this program's own port. The code is useless without
// verifier, which never leaves this program before it redeems the code.
func (l loginCmd) withBrowser(ctx context.Context, k *kong.Context, server string, before savedLogin) error {
	verifier, state := randomSecret(), randomSecret()
	sum := sha256.Sum256([]byte(verifier))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the browser: %w (use --device)", err)
	}
	defer listener.Close()
	answers := make(chan url.Values, 1)
	srv := &http.Server{Handler: callbackHandler(state, answers), ReadTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10}
	defer srv.Close()
	go func() { _ = srv.Serve(listener) }()

	challenge := base64.RawURLEncoding.EncodeToString(sum[:])
	q := url.Values{
		"challenge": {challenge}, "state": {state}, "name": {machineName()},
		"port": {strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)}, "lasts": {strconv.FormatInt(l.Expires.seconds(), 10)},
	}
	address := strings.TrimRight(server, "/") + "/cli-login?" + q.Encode()
	fmt.Fprintf(k.Stderr, "Allow the login in the browser if the page shows this code:\n\n    %s\n\nIf no browser opens, the address is:\n%s\n", api.LoginCode(challenge), address)
	go func() { // some openers wait for the browser
		if browse(ctx, address) != nil && ctx.Err() == nil {
			fmt.Fprintln(k.Stderr, "No browser could be opened. With a browser on another machine, use: codehub login --device")
		}
	}()
	patience, cancel := context.WithTimeout(ctx, browserPatience)
	defer cancel()
	var answer url.Values
	select {
	case answer = <-answers:
	case <-patience.Done():
		return errors.New("the login was not allowed in time")
	}
	if answer.Get("code") == "" {
		return errors.New("the login was refused in the browser")
	}
	return l.redeem(ctx, k, server, api.RedeemLogin{Code: answer.Get("code"), Verifier: verifier}, before)
}

// callbackHandler takes the first answer with this state.
func callbackHandler(state string, answers chan<- url.Values) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Referrer-Policy", "no-referrer")
		q := r.URL.Query()
		if r.Method != http.MethodGet || r.URL.Path != "/callback" || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(state)) != 1 {
			http.NotFound(w, r)
			return
		}
		text := "codehub is logged in. You can close this page.\n"
		if q.Get("code") == "" {
			text = "The login was refused. You can close this page.\n"
		}
		// The program may end as soon as it has the answer, so the page is sent before.
		w.Header().Set("Content-Length", strconv.Itoa(len(text)))
		_, _ = io.WriteString(w, text)
		_ = http.NewResponseController(w).Flush()
		select {
		case answers <- q:
		default:
		}
	})
}

// withDevice logs in by a code that the user types in on any machine.
func (l loginCmd) withDevice(ctx context.Context, k *kong.Context, server string, before savedLogin) error {
	d, err := client.BeginDevice(ctx, server, api.BeginDevice{Name: machineName(), Username: l.Username, TokenLifetime: l.Expires.seconds()}, l.userAgent())
	if err != nil {
		return err
	}
	fmt.Fprintf(k.Stderr, "Open %s and enter the code:\n\n    %s\n\n", terminal.Plain(d.URL), terminal.Plain(d.UserCode))
	interval := max(time.Duration(d.Interval)*time.Second, time.Second)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
		err := l.redeem(ctx, k, server, api.RedeemLogin{Code: d.DeviceCode}, before)
		switch client.CodeOf(err) {
		case "login_pending", "unavailable", "too_many_attempts":
			if time.Now().Before(d.ExpiresAt.Add(time.Minute)) {
				continue
			}
		}
		return err
	}
}

// redeem takes the token of a login that the user has allowed, and saves it in place of the
// previous login.
func (l loginCmd) redeem(ctx context.Context, k *kong.Context, server string, in api.RedeemLogin, before savedLogin) error {
	made, err := client.RedeemLogin(ctx, server, in, l.userAgent())
	if err != nil {
		return err
	}
	if err := (savedLogin{URL: server, Token: made.Token.Token, TokenID: made.Token.ID}).write(); err != nil {
		return fmt.Errorf("save the login: %w", err)
	}
	if sameServer(before.URL, server) && before.TokenID != "" {
		if c, err := client.New(server, made.Token.Token, l.userAgent()); err == nil {
			_ = c.DeleteToken(ctx, before.TokenID) // may have expired, or be another user's
		}
	}
	fmt.Fprintf(k.Stderr, "Logged in to %s as %s.\n", server, terminal.Plain(made.Username))
	return nil
}

func randomSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails: the program crashes instead
	return base64.RawURLEncoding.EncodeToString(b)
}

// machineName names this machine for the user who allows its login.
func machineName() string {
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "this machine"
}
