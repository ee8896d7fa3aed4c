package storagejob

import (
	"context"

	"codehub/internal/archive"
)

// fingerprint reads the metadata of the home. See KindFingerprint.
func (j *job) fingerprint(ctx context.Context) (archive.Stats, error) {
	m, err := archive.Measure(ctx, j.Home, func(m archive.Measurement) error {
		if m.Entries%countBatch == 0 {
			j.report.progress(0, m.Entries)
		}
		return nil
	})
	if err != nil {
		return archive.Stats{}, wrap("read the metadata of the home", err)
	}
	return archive.Stats{Entries: m.Entries, Bytes: m.Bytes, Skipped: m.Skipped, Fingerprint: m.Fingerprint}, nil
}
