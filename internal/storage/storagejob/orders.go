package storagejob

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"codehub/internal/archive"
	"codehub/internal/runtime"
)

const (
	// MaxOrders is the maximum size of the instructions: a ticket has at most
	// 10,000 URLs, each of up to 2 KiB with a role's token, and a generation MaxPacks.
	MaxOrders = 64 << 20
	// MaxPacks is how many packs a job can read and store in S3: about 1 TiB.
	MaxPacks = 30_000
	// ordersWithin is the deadline for the instructions, which the server sends
	// at once.
	ordersWithin = 2 * time.Minute
)

var errNoOrders = errors.New("the instructions are incomplete")

// readOrders reads a Spec. It does not wait for the end of in, which Docker may
// keep open.
func readOrders(ctx context.Context, in io.Reader) (Spec, error) {
	type read struct {
		spec Spec
		err  error
	}
	got := make(chan read, 1)
	go func() {
		spec, err := decodeOrders(in)
		got <- read{spec, err}
	}()
	timer := time.NewTimer(ordersWithin)
	defer timer.Stop()
	select {
	case r := <-got:
		if r.err != nil {
			return Spec{}, r.err
		}
		return r.spec, wrap("instructions", r.spec.validate())
	case <-timer.C:
		return Spec{}, fmt.Errorf("%w within %s", errNoOrders, ordersWithin)
	case <-ctx.Done():
		return Spec{}, context.Cause(ctx)
	}
}

func decodeOrders(in io.Reader) (Spec, error) {
	limited := &io.LimitedReader{R: in, N: MaxOrders}
	d := json.NewDecoder(limited)
	d.DisallowUnknownFields()
	var spec Spec
	err := d.Decode(&spec)
	switch {
	case err == nil:
	case limited.N <= 0:
		return Spec{}, fmt.Errorf("instructions are longer than %d bytes", MaxOrders)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return Spec{}, errNoOrders
	default:
		return Spec{}, fmt.Errorf("instructions: %w", err)
	}
	rest, err := io.ReadAll(d.Buffered())
	if err != nil {
		return Spec{}, fmt.Errorf("instructions: %w", err)
	}
	if strings.TrimSpace(string(rest)) != "" {
		return Spec{}, errors.New("instructions: unexpected data after the end")
	}
	return spec, nil
}

// validate detects errors that would otherwise show after hours of packing.
func (s *Spec) validate() error {
	if s.Claim == "" {
		return errors.New("claim is missing")
	}
	if s.MinFree < 0 || s.MinFree >= 1 {
		return fmt.Errorf("min_free is %g, not between 0 and 1", s.MinFree)
	}
	if s.SharedMinFree < 0 || s.SharedMinFree >= 1 {
		return fmt.Errorf("shared_min_free is %g, not between 0 and 1", s.SharedMinFree)
	}
	meta := s.Meta
	if s.Generation != nil || s.Kind == string(runtime.JobBackup) || s.Kind == string(runtime.JobDrill) {
		return s.validateGeneration()
	}
	switch s.Kind {
	case KindFingerprint:
		return nil // there is no archive
	case string(runtime.JobArchive):
		if meta.ArchiveOpID != s.Claim {
			return fmt.Errorf("archive_op_id %.50q is not the claim", meta.ArchiveOpID)
		}
		meta.Describe(archive.Stats{Size: 1, SHA256: strings.Repeat("0", 64)})
		if s.Signed != nil && (s.Signed.Upload == nil || s.Signed.Meta == "") {
			return errors.New("upload URL is missing")
		}
	case string(runtime.JobRestore):
		if s.Signed != nil && s.Signed.Get == "" {
			return errors.New("download URL is missing")
		}
	default:
		return fmt.Errorf("unknown kind %.50q", s.Kind)
	}
	_, err := meta.Encode()
	return err
}

func (s *Spec) validateGeneration() error {
	g := s.Generation
	if g == nil {
		return errors.New("generation is missing")
	}
	for _, name := range []string{g.Name, g.Former} {
		if _, is := archive.IsManifest(name); !is && (name != "" || g.Name == "") {
			return fmt.Errorf("%.200q is not the name of a manifest", name)
		}
	}
	switch s.Kind {
	case string(runtime.JobBackup):
		if g.Signed != nil && (g.Signed.Put == "" || g.Former != "" && g.Signed.Get[g.Former] == "") {
			return errors.New("URL of a manifest is missing")
		}
		return nil
	case string(runtime.JobRestore), string(runtime.JobDrill):
		if g.Signed != nil && g.Signed.Get[g.Name] == "" {
			return errors.New("download URL is missing")
		}
		if s.Meta.Size <= 0 || len(s.Meta.SHA256) != 64 {
			return errors.New("size or digest of the manifest is missing")
		}
		return nil
	}
	return fmt.Errorf("unknown kind %.50q of a generation", s.Kind)
}
