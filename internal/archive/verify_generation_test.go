package archive

import (
	"context"
	"errors"
	"io"
)

// Verify reads everything that the generation needs, and compares it with the manifest.
func (m *Manifest) Verify(ctx context.Context, get GetRange) error {
	t, err := m.tar(ctx, get, nil)
	if err != nil {
		return err
	}
	defer t.stop()
	for {
		if _, err := t.next(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
