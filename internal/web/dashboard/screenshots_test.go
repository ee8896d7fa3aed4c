package dashboard

import (
	"bytes"
	"cmp"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"codehub/api"
)

// screenshots is the folder that `make screenshots` writes to, test-output/screenshots; empty
// in a test run.
var screenshots = os.Getenv("CODEHUB_SCREENSHOTS")

// sheetScreens are the screens on a sheet: a row per language, a column per scheme.
var sheetScreens = []screen{
	{"light-en", "light", "en-US,en", 1280, 800}, {"dark-en", "dark", "en-US,en", 1280, 800},
	{"light-ko", "light", "ko-KR,ko", 1280, 800}, {"dark-ko", "dark", "ko-KR,ko", 1280, 800},
}

// album holds the screenshots of each page by screen.
type album struct {
	mu       sync.Mutex
	names    []string
	pictures map[string]map[string][]byte
}

var pictures = album{pictures: map[string]map[string][]byte{}}

// add keeps a screenshot. Refused forms, dialogs as pages of their own, and forms that are alike
// differ little from the rest and are skipped.
func (a *album) add(name string, l screen, picture []byte) {
	if strings.HasSuffix(name, "-wrong") || slices.Contains([]string{"recover-archive-page", "password-page", "new-page", "admin-stop", "admin-archive", "admin-banner", "group-member", "passkey-create"}, name) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pictures[name] == nil {
		a.pictures[name] = map[string][]byte{}
		a.names = append(a.names, name)
	}
	a.pictures[name][l.name] = picture
}

// write makes a sheet of each page with its four screens and a page that shows all sheets, and
// replaces the pictures of the README in docs/images. TestMain calls it when all tests have passed.
func (a *album) write(dir string) error {
	sheets := filepath.Join(dir, "pages")
	if err := cmp.Or(os.RemoveAll(sheets), os.MkdirAll(sheets, 0o755)); err != nil {
		return err
	}
	a.names = slices.DeleteFunc(a.names, func(name string) bool { return strings.HasPrefix(name, "readme-") })
	slices.Sort(a.names)
	index := "<!doctype html><meta charset=\"utf-8\"><title>Pages of codehub</title><p>English above Korean, light next to dark.</p>\n"
	for _, name := range a.names {
		picture, err := sheet(a.pictures[name])
		if err == nil {
			err = writePicture(filepath.Join(sheets, name+".png"), picture)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		index += fmt.Sprintf("<h2>%s</h2><img src=\"pages/%s.png\" alt=\"\">\n", name, name)
	}
	if err := os.WriteFile(filepath.Join(dir, "index.html"), []byte(index), 0o644); err != nil {
		return err
	}
	for file, name := range map[string]string{"dashboard": "readme-list"} {
		for _, scheme := range []string{"light", "dark"} {
			picture, err := png.Decode(bytes.NewReader(a.pictures[name][scheme+"-en"]))
			if err == nil {
				err = writePicture(filepath.Join("../../../docs/images", file+"-"+scheme+".png"), crop(picture, 1000))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

const sheetGap = 16

// sheet puts the screens of a page next to each other.
func sheet(of map[string][]byte) (image.Image, error) {
	var all []image.Image
	height := 0
	for _, l := range sheetScreens {
		picture, err := png.Decode(bytes.NewReader(of[l.name]))
		if err != nil {
			return nil, fmt.Errorf("the picture for %s: %w", l.name, err)
		}
		all = append(all, crop(picture, 1500))
		height = max(height, all[len(all)-1].Bounds().Dy())
	}
	out := image.NewRGBA(image.Rect(0, 0, 2*1280+3*sheetGap, 2*height+3*sheetGap))
	draw.Draw(out, out.Bounds(), image.NewUniform(color.Gray{0x80}), image.Point{}, draw.Src)
	for i, picture := range all {
		at := image.Pt(sheetGap+i%2*(1280+sheetGap), sheetGap+i/2*(height+sheetGap))
		draw.Draw(out, image.Rectangle{at, at.Add(picture.Bounds().Size())}, picture, picture.Bounds().Min, draw.Src)
	}
	return out, nil
}

// crop cuts a picture to at most height, and drops the empty lines at its end.
func crop(picture image.Image, height int) image.Image {
	b := picture.Bounds()
	last := picture.At(b.Min.X, b.Max.Y-1)
	end := b.Max.Y
	for ; end > b.Min.Y+240; end-- {
		same := true
		for x := b.Min.X; x < b.Max.X && same; x += 2 {
			same = picture.At(x, end-1) == last
		}
		if !same {
			break
		}
	}
	b.Max.Y = min(end+24, b.Max.Y, b.Min.Y+height)
	return picture.(interface {
		SubImage(image.Rectangle) image.Image
	}).SubImage(b)
}

// writePicture writes a picture with few colours: pages are flat, so only the edges of letters
// lose smoothness.
func writePicture(path string, picture image.Image) error {
	var b bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, reduced(picture, 48)); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// reduced returns the picture in at most n colours: the most frequent ones, one of each group
// of similar colours.
func reduced(picture image.Image, n int) image.Image {
	b := picture.Bounds()
	counts := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA) }
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	var colours []color.RGBA
	for c := range counts {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	var palette color.Palette
	near := func(c color.RGBA, within int) bool {
		for _, p := range palette {
			q := p.(color.RGBA)
			d := (int(c.R)-int(q.R))*(int(c.R)-int(q.R)) + (int(c.G)-int(q.G))*(int(c.G)-int(q.G)) + (int(c.B)-int(q.B))*(int(c.B)-int(q.B))
			if d <= within*within {
				return true
			}
		}
		return false
	}
	for _, c := range colours {
		// A surface keeps its own colour; the edges of letters share colours.
		within := 28
		if counts[c] > 4000 {
			within = 2
		}
		if len(palette) < n && !near(c, within) {
			palette = append(palette, c)
		}
	}
	out := image.NewPaletted(image.Rect(0, 0, b.Dx(), b.Dy()), palette)
	index := map[color.RGBA]uint8{}
	for y := range b.Dy() {
		for x := range b.Dx() {
			c := at(b.Min.X+x, b.Min.Y+y)
			i, ok := index[c]
			if !ok {
				i = uint8(palette.Index(c))
				index[c] = i
			}
			out.SetColorIndex(x, y, i)
		}
	}
	return out
}

// restorePlan has each kind of step.
var restorePlan = api.RestorePlan{OnHold: true, Reason: "another database managed these workspaces last, at 2026-03-01 10:00:00 UTC", Unchanged: 1, Workspaces: []api.RestoreStep{
	{ID: "2", Name: "archived-blog", Owner: "ann", Action: api.RestoreArchive, ReasonCode: "archive_newer"},
	{ID: "3", Name: "nightly-build", Action: api.RestoreVolume, New: true, Running: true, ReasonCode: "created_later"},
	{ID: "4", Name: "old-experiment", Owner: "ann", Action: api.RestoreVolume, Undelete: true, ReasonCode: "undeleted_running"},
	{ID: "5", Name: "thesis", Owner: "ann", Action: api.RestoreKeep, Lost: true, ReasonCode: "no_copy"},
}}
