package maintenance

import (
	"fmt"

	"github.com/alecthomas/kong"

	"codehub/internal/storage/encryption"
)

type archiveKeyCmd struct {
	New archiveKeyNewCmd `cmd:"" help:"Print a new key for CODEHUB_ARCHIVE_KEY_FILE."`
}

type archiveKeyNewCmd struct{}

// Help says where the lines belong.
func (archiveKeyNewCmd) Help() string {
	return `The file has one key on a line, as age-keygen writes it. Archives and backups can be read with each of them. Of a further key that is kept elsewhere, the file needs the public part (age1…) only. Keep a copy of the file: without it, encrypted archives and backups are lost.`
}

func (archiveKeyNewCmd) Run(k *kong.Context) error {
	key, err := encryption.NewKey()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(k.Stdout, "# public key: %s\n%s\n", key.Recipient(), key)
	return err
}
