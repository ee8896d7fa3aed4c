package build

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"codehub/internal/runtime/agent"
)

const (
	dockerfileName = agent.ContextDockerfile // the repository's own, which it replaces, has been read
	ignoreName     = ".dockerignore"
)

// own returns the instruction with the labels after each FROM. With those, the images of a failed
// build are found, and no build uses layers of another owner's: some build arguments, such as
// HTTP_PROXY, do not count when Docker looks for a layer.
func own(labels map[string]string) string {
	line := "LABEL"
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		line += fmt.Sprintf(" %q=%q", name, labels[name])
	}
	return line + "\n"
}

// writeContext writes a build context with the Dockerfile, which is not in the image after
// COPY of the whole context. Later entries of a tar replace earlier ones.
func writeContext(w io.Writer, spec Spec, dockerfile string) error {
	out := tar.NewWriter(w)
	for _, from := range spec.Context {
		if err := copyTar(out, tar.NewReader(from)); err != nil {
			return err
		}
	}
	files := map[string][]byte{dockerfileName: []byte(dockerfile), ignoreName: []byte(dockerfileName + "\n" + ignoreName + "\n")}
	maps.Copy(files, spec.Files)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			return err
		}
		if _, err := out.Write(files[name]); err != nil {
			return err
		}
	}
	return out.Close()
}

func copyTar(out *tar.Writer, in *tar.Reader) error {
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return badContext(err)
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
		default:
			continue // a device, or what Docker does not know
		}
		h.Format = tar.FormatUnknown
		if err := out.WriteHeader(h); err != nil {
			return badContext(err)
		}
		if _, err := io.Copy(out, in); err != nil {
			return badContext(err)
		}
	}
}

func badContext(err error) error {
	if errors.Is(err, io.ErrClosedPipe) { // Docker reads no more of it
		return err
	}
	return &Failed{"The build context is not a complete tar: " + sentence(err.Error())}
}
