package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/opencontainers/go-digest"
	"golang.org/x/term"

	"codehub/internal/base/setting"
	"codehub/internal/cli/terminal"
	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/runtime/docker/image"
	"codehub/internal/runtime/docker/imagefile"
	"codehub/internal/server/config"
	"codehub/internal/workspace/imageref"
)

// Images are the commands for the images on Docker's machine. The program adds them to the
// client's command images.
type Images struct {
	Load imagesLoadCmd `cmd:"" group:"Server:" help:"Load images from files into Docker."`
	Pull imagesPullCmd `cmd:"" group:"Server:" help:"Pull the images that the settings name."`
	List imagesListCmd `cmd:"" group:"Server:" help:"List the images that the settings name."`
}

// usedImage is an image that a setting names.
type usedImage struct {
	Image   string `json:"image"`
	Setting string `json:"setting"`
	Use     string `json:"use"`
}

// imageSettings are the settings of serve, of which these commands use those of images.
type imageSettings struct {
	config.Config `embed:""`
}

// open returns the images of this machine, and those that the settings name.
func (s *imageSettings) open() (*image.Images, []usedImage, func(), error) {
	if err := s.Resolve(); err != nil {
		return nil, nil, nil, err
	}
	if s.Runtime != config.Docker {
		return nil, nil, nil, setting.Invalid("CODEHUB_RUNTIME", "the nodes of the cluster pull the images", "push the images to a registry (docs/kubernetes.md)")
	}
	e, err := engine.New(engine.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, nil, err
	}
	used := []usedImage{{s.Docker.IDEImage, "CODEHUB_IDE_IMAGE", "IDE"}, {s.Defaults.DefaultImage, "CODEHUB_DEFAULT_IMAGE", "new workspaces"}}
	used = slices.DeleteFunc(used, func(u usedImage) bool { return u.Image == "" })
	images := image.New(e, image.Config{
		DefaultImage: s.Defaults.DefaultImage, IDEImage: s.Docker.IDEImage, RegistryAuthFile: s.Docker.RegistryAuthFile,
		PullBytesPerSecond: s.Docker.PullBytesPerSecond, PullTimeout: s.Docker.PullTimeout,
	})
	return images, used, func() { _ = e.Close() }, nil
}

type imagesListCmd struct {
	imageSettings `embed:""`
	terminal.Format
}

// Help describes the command beyond its flags.
func (imagesListCmd) Help() string { return "Run it on the machine where Docker is." }

// listedImage is what codehub images list prints as JSON.
type listedImage struct {
	usedImage
	Here   bool   `json:"here"`
	ID     string `json:"id,omitempty"`
	Digest string `json:"digest,omitempty"`
	Size   int64  `json:"size,omitempty"`
}

func (c *imagesListCmd) Run(ctx context.Context, k *kong.Context) error {
	images, used, end, err := c.open()
	if err != nil {
		return err
	}
	defer end()
	list := []listedImage{}
	for _, u := range used {
		found, err := images.Local(ctx, u.Image)
		if err != nil {
			return err
		}
		list = append(list, listedImage{u, found.ID != "", found.ID, found.Digest, found.Size})
	}
	return c.Print(k.Stdout, list, imageTable(list))
}

func imageTable(list []listedImage) string {
	rows := [][]string{{"FOR", "HERE", "ID", "SIZE", "IMAGE"}}
	missing := 0
	for _, i := range list {
		if !i.Here {
			missing++
			rows = append(rows, []string{i.Use, "no", "", "", i.Image})
			continue
		}
		rows = append(rows, []string{i.Use, "yes", strings.TrimPrefix(i.ID, "sha256:")[:12], terminal.Size(i.Size), i.Image})
	}
	text := terminal.Table(rows)
	if missing > 0 {
		text += fmt.Sprintf("\nMissing: %d. To download them: codehub images pull. From files: codehub images load FILE. In a clone: make image.\n", missing)
	}
	return text
}

type imagesPullCmd struct {
	imageSettings `embed:""`
}

// Help describes the command beyond its flags.
func (imagesPullCmd) Help() string {
	return "It also pulls an image whose name has no digest, which the server itself does not do. Run it on the machine where Docker is."
}

func (c *imagesPullCmd) Run(ctx context.Context, k *kong.Context) error {
	images, used, end, err := c.open()
	if err != nil {
		return err
	}
	defer end()
	line := newLine()
	var errs []error
	for _, u := range used {
		if err := pullImage(ctx, images, u.Image, line, k.Stdout); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func pullImage(ctx context.Context, images *image.Images, ref string, line *line, out io.Writer) error {
	found, err := images.Local(ctx, ref)
	if err != nil {
		return err
	}
	switch local := imageref.BuiltHere(ref) && !imageref.Pinned(ref); {
	case found.ID != "" && (local || imageref.Pinned(ref)):
		fmt.Fprintf(out, "%s is here.\n", ref)
		return nil
	case local:
		return fmt.Errorf("%s is in no registry: load it from a file (codehub images load FILE), or build it (make image in a clone)", ref)
	}
	if line.out == nil {
		fmt.Fprintf(out, "Pulling %s\n", ref)
	}
	line.show(ref + ": asking the registry")
	err = images.Fetch(ctx, ref, func(p runtime.Progress) {
		if p.Total > 0 {
			line.show(fmt.Sprintf("%s: %s of %s", ref, terminal.Size(p.Done), terminal.Size(p.Total)))
		}
	})
	line.clear()
	if err != nil {
		return err
	}
	now, err := images.Local(ctx, ref)
	if err != nil {
		return err
	}
	if now.ID == found.ID {
		fmt.Fprintf(out, "%s is up to date.\n", ref)
	} else {
		fmt.Fprintf(out, "Pulled %s (%s).\n", ref, terminal.Size(now.Size))
	}
	return nil
}

type imagesLoadCmd struct {
	imageSettings `embed:""`
	Files         []string `arg:"" name:"file" type:"existingfile" help:"An OCI archive, or what docker save writes; also compressed with gzip or zstd."`
	As            string   `name:"as" placeholder:"NAME" help:"Name of the image, in place of the one that a setting gives it. With a digest, the image must have it."`
}

// Help describes the command beyond its flags.
func (imagesLoadCmd) Help() string {
	return "An image is loaded if a setting names it by its digest, or by the name in the file, and gets the name of the setting. Run it on the machine where Docker is."
}

func (c *imagesLoadCmd) Run(ctx context.Context, k *kong.Context) error {
	images, used, end, err := c.open()
	if err != nil {
		return err
	}
	defer end()
	if c.As != "" {
		if !imageref.Valid(c.As) {
			return &setting.Problem{Setting: "--as", Why: fmt.Sprintf("%q is not an image reference", c.As), Do: "give one like localhost/tools:1"}
		}
		used = []usedImage{{Image: c.As}}
	}
	arch, err := images.Architecture(ctx)
	if err != nil {
		return err
	}
	line := newLine()
	for _, path := range c.Files {
		name := filepath.Base(path)
		line.show(name + ": checking")
		f, err := imagefile.Open(path)
		line.clear()
		if err != nil {
			return err
		}
		chosen, skipped, err := chooseImages(f.Images, arch, used, c.As != "")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, text := range skipped {
			fmt.Fprintf(k.Stdout, "%s: skipped %s, which no setting names. To load it: --as NAME\n", name, text)
		}
		for _, l := range chosen {
			if err := loadImage(ctx, images, f, l, line, k.Stdout); err != nil {
				return err
			}
		}
	}
	return nil
}

// toLoad is an image of a file, and what it is for.
type toLoad struct {
	imagefile.Tagged
	usedImage
}

func loadImage(ctx context.Context, images *image.Images, f *imagefile.File, l toLoad, line *line, out io.Writer) error {
	found, err := images.Local(ctx, l.Name)
	if err != nil {
		return err
	}
	if found.ID == l.ID.String() {
		fmt.Fprintf(out, "%s is here.\n", l.usedImage.Image)
		return nil
	}
	err = images.Load(ctx, f, []imagefile.Tagged{l.Tagged}, func(n int64) { line.show(fmt.Sprintf("%s: %s", l.usedImage.Image, terminal.Size(n))) })
	line.clear()
	if err != nil {
		return err
	}
	text := "Loaded " + l.usedImage.Image
	if l.Use != "" {
		text += " (" + l.Use + ")"
	}
	if l.Name != l.usedImage.Image {
		text += " as " + l.Name + ". Its digest matches"
	}
	fmt.Fprintln(out, text+".")
	return nil
}

// chooseImages chooses the images of a file for Docker's architecture that are used, and describes
// the others. With named there is one use, for any image.
func chooseImages(all []imagefile.Image, arch string, used []usedImage, named bool) (out []toLoad, skipped []string, err error) {
	var others []string
	all = slices.DeleteFunc(slices.Clone(all), func(i imagefile.Image) bool {
		if i.Architecture != "" && i.Architecture != arch {
			others = append(others, i.Architecture)
			return true
		}
		return false
	})
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("the image is for %s, and Docker here runs %s", strings.Join(slices.Compact(others), ", "), arch)
	}
	if named && len(all) > 1 {
		return nil, nil, fmt.Errorf("it has %d images, and --as names one", len(all))
	}
	for _, i := range all {
		u, err := useOf(i, used, named)
		switch {
		case err != nil:
			return nil, nil, err
		case u == nil:
			skipped = append(skipped, described(i))
		default:
			out = append(out, toLoad{imagefile.Tagged{Image: i, Name: cmp.Or(imageref.Loaded(u.Image), u.Image)}, *u})
		}
	}
	if len(out) == 0 {
		return nil, nil, fmt.Errorf("no setting names the image %s; to load it: --as NAME", strings.Join(skipped, ", "))
	}
	return out, skipped, nil
}

// useOf returns what an image of a file is used for; nil: nothing. An image with the name of a
// use and another digest is an error.
func useOf(i imagefile.Image, used []usedImage, named bool) (*usedImage, error) {
	for _, u := range used {
		if d := imageref.Digest(u.Image); d != "" && slices.Contains(i.Digests, digest.Digest(d)) {
			return &u, nil
		}
	}
	for _, u := range used {
		same := named || slices.ContainsFunc(i.Names, func(name string) bool { return imageref.Repository(name) == imageref.Repository(u.Image) })
		switch {
		case !same:
		case !imageref.Pinned(u.Image):
			return &u, nil
		case len(i.Digests) == 0:
			return nil, fmt.Errorf("%s cannot be compared with %s: what docker save writes has no digest; give the OCI archive, or a name without a digest", described(i), u.Image)
		default:
			return nil, fmt.Errorf("it has %s, and %s names %s: give the file of the same release, or --as NAME", described(i), cmp.Or(u.Setting, "--as"), u.Image)
		}
	}
	return nil, nil
}

func described(i imagefile.Image) string {
	text := "without a name"
	if len(i.Names) > 0 {
		text = i.Names[0]
	}
	if len(i.Digests) > 0 {
		text += "@" + i.Digests[len(i.Digests)-1].String()
	}
	return terminal.Plain(text)
}

// line is a line of progress on a terminal, which it overwrites.
type line struct {
	out  *os.File // nil: nothing is shown
	last string
}

func newLine() *line {
	if term.IsTerminal(int(os.Stderr.Fd())) {
		return &line{out: os.Stderr}
	}
	return &line{}
}

func (l *line) show(text string) {
	if l.out != nil && text != l.last {
		l.last = text
		fmt.Fprint(l.out, "\r\x1b[K"+text)
	}
}

func (l *line) clear() {
	if l.last != "" {
		l.last = ""
		fmt.Fprint(l.out, "\r\x1b[K")
	}
}
