package bucket

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"codehub/internal/base/setting"
	"codehub/internal/storage/encryption"
)

// Settings are the settings of a Bucket, as codehub serve declares them.
type Settings struct {
	MinFree string `name:"min-free" env:"CODEHUB_MIN_FREE" default:"5%" help:"Minimum free space, in percent, on a disk with homes; below it nothing is started or restored (0 = no minimum)."`

	KeyFile string `name:"archive-key-file" env:"CODEHUB_ARCHIVE_KEY_FILE" help:"File with age keys (AGE-SECRET-KEY-…, and age1… of keys kept elsewhere) by which archives and backups are encrypted (default: none; they are not encrypted)."`
	Encrypt bool   `name:"encrypt-archives" env:"CODEHUB_ENCRYPT_ARCHIVES" default:"true" negatable:"" help:"Encrypt new archives and backups, if there is a file of keys; false: it only reads those that are encrypted."`

	// Keys are those of KeyFile; nil: none.
	Keys *encryption.KeyFile `kong:"-"`

	// MinFreeShare is MinFree as a share of a disk, such as 0.05, that restores leave
	// free (see storagejob.Spec); 0: none. Archives into a folder leave half of it
	// free, since archiving is what frees space on a full disk.
	MinFreeShare float64 `kong:"-"`
}

// Resolve checks the settings and computes MinFreeShare. It returns an invalid one as
// *setting.Problem.
func (s *Settings) Resolve() error {
	share, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(s.MinFree), "%")), 64)
	if err != nil || !(share >= 0 && share <= 90) {
		return setting.Invalid("CODEHUB_MIN_FREE", fmt.Sprintf("%q is not a share of a disk", s.MinFree), "give a percentage from 0 to 90, like 5%")
	}
	s.MinFreeShare = share / 100
	return s.keys()
}

// keys reads the file of keys. A relative name is that of a credential of systemd, as with other secrets.
func (s *Settings) keys() (err error) {
	if s.KeyFile == "" {
		return nil
	}
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); dir != "" && !filepath.IsAbs(s.KeyFile) {
		s.KeyFile = filepath.Join(dir, s.KeyFile)
	}
	if s.KeyFile, err = filepath.Abs(s.KeyFile); err == nil {
		s.Keys, err = encryption.ReadKeyFile(s.KeyFile)
	}
	if err != nil {
		return setting.Invalid(keySetting, err.Error(), "name a file of age-keygen or `codehub archive-key new` that codehub's user can read")
	}
	return nil
}
