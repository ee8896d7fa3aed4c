package inside

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// TokenEnv is the variable with the token that requests to a probe need.
const TokenEnv = "CODEHUB_PROBE_TOKEN"

// dialled is the answer of a probe: which of the asked addresses accepted a connection.
type dialled struct {
	Open []string `json:"open"`
}

// Ask asks the probe at host:port to connect to TCP addresses, and returns those that accepted
// a connection, in their order. It takes 2 s and the way to the probe at most.
func Ask(ctx context.Context, client *http.Client, probe, token string, addresses []string) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+probe+"/dial?"+url.Values{"address": addresses}.Encode(), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the probe responded with status %d", res.StatusCode)
	}
	var answer dialled
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("read the answer of the probe: %w", err)
	}
	return answer.Open, nil
}

// dialTimeout is how long a probe waits for a connection.
const dialTimeout = 2 * time.Second

// runProbe is a probe at an address until ctx ends.
func runProbe(ctx context.Context, address string) error {
	token := os.Getenv(TokenEnv)
	if token == "" {
		return errors.New("a probe needs the variable " + TokenEnv)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return serveProbe(ctx, l, token)
}

// serveProbe answers requests of Ask until ctx ends.
func serveProbe(ctx context.Context, l net.Listener, token string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /dial", func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) != 1 {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(dialled{Open: dial(r.Context(), r.URL.Query()["address"])})
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// dial returns those of the addresses that accept a connection, in their order.
func dial(ctx context.Context, addresses []string) []string {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	results := make([]chan bool, len(addresses))
	for i, address := range addresses {
		results[i] = make(chan bool, 1)
		go func() {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
			if err == nil {
				conn.Close()
			}
			results[i] <- err == nil
		}()
	}
	open := []string{}
	for i, address := range addresses {
		if <-results[i] {
			open = append(open, address)
		}
	}
	return open
}
