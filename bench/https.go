package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"codehub/internal/e2e/proc"
)

// https measures requests by HTTP/2 with TLS, which codehub, nginx and Caddy serve
// themselves, with the same certificate.
func (b *bench) https(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "codehub-bench-https-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cert, key, err := writeCertificate(dir)
	if err != nil {
		return err
	}
	listen, err := proc.FreeAddress()
	if err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(listen)
	if err != nil {
		return err
	}
	secure := *b
	secure.cert, secure.key = cert, key
	own, err := secure.serve(ctx, proc.Options{
		Listen: listen, URL: "https://localhost:" + port, Client: &http.Client{Transport: bareClient},
		Env: []string{"CODEHUB_WORKSPACE_URL=https://*.localhost:" + port, "CODEHUB_TLS_CERT=" + cert, "CODEHUB_TLS_KEY=" + key}})
	if err != nil {
		return err
	}
	defer own.close()
	l, err := own.lineup(ctx, "https", nginx, caddy)
	if err != nil {
		return err
	}
	defer l.close()
	for _, streams := range []int{1, 8} {
		const connections = 32
		what := fmt.Sprintf("https: HTTP/2 with TLS, %d connections with %d requests at a time each, 1 KiB", connections, streams)
		err := b.compareRates(what, l.all, func(p *proxied) (rate, error) { return p.h2load(ctx, connections, streams, "/bytes?n=1024") })
		if err != nil {
			return err
		}
	}
	return nil
}

// writeCertificate writes a certificate for localhost and its subdomains, and its key.
func writeCertificate(dir string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost", "*.localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(240 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	signed, err := x509.CreateCertificate(rand.Reader, &template, &template, private.Public(), private)
	if err != nil {
		return "", "", err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	return cert, key, errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), 0o644),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
}

var (
	h2loadRate  = regexp.MustCompile(`finished in [0-9.a-z]+, ([0-9.]+) req/s`)
	h2loadCount = regexp.MustCompile(`requests: \d+ total, \d+ started, (\d+) done, \d+ succeeded, (\d+) failed`)
	h2loadProto = regexp.MustCompile(`Application protocol: (\S+)`)
)

// h2load runs h2load for a few seconds. It writes the time of each request to a file, from
// which the percentile is taken.
func (p *proxied) h2load(ctx context.Context, connections, streams int, path string) (rate, error) {
	dir, err := os.MkdirTemp("", "codehub-bench-h2load-")
	if err != nil {
		return rate{}, err
	}
	defer os.RemoveAll(dir)
	times := filepath.Join(dir, "times")
	args := []string{"--duration", "4", "--clients", strconv.Itoa(connections), "--max-concurrent-streams", strconv.Itoa(streams),
		"--threads", "2", "--log-file", times, "--connect-to", p.address}
	for _, h := range p.headers {
		args = append(args, "--header", h)
	}
	out, err := exec.CommandContext(ctx, "h2load", append(args, p.scheme+"://"+p.host+path)...).CombinedOutput()
	if err != nil {
		return rate{}, fmt.Errorf("h2load: %w: %s", err, out)
	}
	perSecond, count, protocol := h2loadRate.FindSubmatch(out), h2loadCount.FindSubmatch(out), h2loadProto.FindSubmatch(out)
	if perSecond == nil || count == nil || protocol == nil || string(protocol[1]) != "h2" || string(count[2]) != "0" {
		return rate{}, fmt.Errorf("h2load printed %s", out)
	}
	var r rate
	if r.perSecond, err = strconv.ParseFloat(string(perSecond[1]), 64); err != nil {
		return r, err
	}
	took, err := readTimes(times)
	if err != nil {
		return r, err
	}
	r.p99 = percentile(took, 99)
	return r, nil
}

// readTimes reads the times of the requests from h2load's file: its lines have the start, the
// status, and the time until the end of the response, in microseconds.
func readTimes(file string) ([]time.Duration, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[1] != "200" {
			return nil, fmt.Errorf("h2load: a request ended with %q", lines.Text())
		}
		us, err := strconv.Atoi(fields[2])
		if err != nil {
			return nil, err
		}
		took = append(took, time.Duration(us)*time.Microsecond)
	}
	if len(took) == 0 {
		return nil, errors.New("h2load recorded no requests")
	}
	return took, nil
}
