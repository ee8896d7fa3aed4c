// Package trust adds the certificate authorities of a company to those that programs trust:
// the clients of the server itself (Install), and the programs of workspaces (Files, Env).
package trust

import (
	"bytes"
	"crypto/sha1"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"
	"golang.org/x/sys/unix"
)

const (
	// Dir is where workspaces have the files of Files.
	Dir = "/opt/codehub-trust"

	bundleFile  = "ca-certificates.crt"
	companyFile = "company.crt"
	javaFile    = "java.jks"

	// BundlePath is where workspaces have the image's authorities and those of the company.
	BundlePath = Dir + "/" + bundleFile
)

// maxFile bounds the authorities of a company: in Kubernetes they are an annotation of each
// workspace's Pod, which has 256 KiB for all annotations.
const maxFile = 64 << 10

// Bundles are where distributions keep the authorities that programs trust, those of Debian
// and Alpine first, and then those of Fedora.
var Bundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"}

// Read returns the certificates in a file, in PEM and without what else it has. A file
// with a private key is refused: workspaces get the content.
func Read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxFile:
		return nil, fmt.Errorf("%s is larger than %d KiB", file, maxFile>>10)
	}
	var out bytes.Buffer
	for n := 1; ; n++ {
		block, rest := pem.Decode(text)
		if block == nil {
			break
		}
		text = rest
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s has a block %q, and not only certificates", file, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("certificate %d of %s cannot be read: %w", n, file, err)
		}
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})
	}
	if out.Len() == 0 {
		return nil, fmt.Errorf("%s has no certificate in PEM", file)
	}
	return out.Bytes(), nil
}

// Install makes this process trust the authorities in addition to those of the system. It has
// to be called before the first TLS connection: Go reads the system's authorities once.
func Install(company []byte) error {
	system, err := systemBundle()
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("authorities", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("make a file for the authorities: %w", err)
	}
	f := os.NewFile(uintptr(fd), "authorities")
	defer f.Close()
	if _, err := f.Write(joined(system, company)); err != nil {
		return fmt.Errorf("write the authorities: %w", err)
	}
	const variable = "SSL_CERT_FILE"
	before, set := os.LookupEnv(variable)
	if err := os.Setenv(variable, "/proc/self/fd/"+strconv.Itoa(fd)); err != nil {
		return err
	}
	pool, err := x509.SystemCertPool()
	if set {
		err = errors.Join(err, os.Setenv(variable, before))
	} else {
		err = errors.Join(err, os.Unsetenv(variable))
	}
	if err != nil {
		return fmt.Errorf("read the system's authorities: %w", err)
	}
	with := pool.Clone()
	with.AppendCertsFromPEM(company)
	if !with.Equal(pool) {
		return errors.New("the system's authorities were read before those of the company")
	}
	return nil
}

// systemBundle returns the authorities of this machine, which Go looks for in the same places.
func systemBundle() ([]byte, error) {
	if file := os.Getenv("SSL_CERT_FILE"); file != "" {
		return os.ReadFile(file)
	}
	for _, name := range append(slices.Clone(Bundles), "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem") {
		if text, err := os.ReadFile(name); err == nil {
			return text, nil
		}
	}
	return nil, nil
}

// Files returns the files of Dir for an image whose own authorities are given; an image
// without any gets those of the public.
func Files(image, company []byte) map[string][]byte {
	if !bytes.Contains(image, []byte("-----BEGIN ")) {
		image = public()
	}
	all := joined(image, company)
	return map[string][]byte{bundleFile: all, companyFile: company, javaFile: keyStore(all)}
}

func joined(a, b []byte) []byte {
	out := slices.Clip(bytes.TrimRight(a, "\n"))
	if len(out) > 0 {
		out = append(out, byte(10))
	}
	return append(out, b...)
}

// public returns the authorities of Mozilla, without those that it trusts for some
// certificates only.
func public() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// keyStore returns the certificates as a trust store that all versions of Java read without a
// password (a PKCS#12 file needs one before Java 18): JKS, version 2.
func keyStore(certificates []byte) []byte {
	var entries bytes.Buffer
	n := uint32(0)
	text := func(s string) {
		entries.Write(binary.BigEndian.AppendUint16(nil, uint16(len(s))))
		entries.WriteString(s)
	}
	for {
		block, rest := pem.Decode(certificates)
		if block == nil {
			break
		}
		certificates = rest
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			continue // Java would refuse the whole file
		}
		n++
		entries.Write(binary.BigEndian.AppendUint32(nil, 2)) // a trusted certificate
		text("ca-" + strconv.FormatUint(uint64(n), 10))
		entries.Write(make([]byte, 8)) // the time of its creation
		text("X.509")
		entries.Write(binary.BigEndian.AppendUint32(nil, uint32(len(block.Bytes))))
		entries.Write(block.Bytes)
	}
	out := binary.BigEndian.AppendUint32(nil, 0xfeedfeed)
	out = binary.BigEndian.AppendUint32(out, 2)
	out = binary.BigEndian.AppendUint32(out, n)
	out = append(out, entries.Bytes()...)
	sum := sha1.New()
	for _, c := range []byte("changeit") { // Java's usual password, for those who give one
		sum.Write([]byte{0, c})
	}
	sum.Write([]byte("Mighty Aphrodite"))
	sum.Write(out)
	return sum.Sum(out)
}

// Env returns the variables by which programs find the files of Dir, except those that the
// image sets.
func Env(image []string) map[string]string {
	env := map[string]string{
		"SSL_CERT_FILE":       BundlePath, // OpenSSL, Go, Rust, and what is built with them
		"CURL_CA_BUNDLE":      BundlePath,
		"GIT_SSL_CAINFO":      BundlePath,
		"PIP_CERT":            BundlePath,
		"REQUESTS_CA_BUNDLE":  BundlePath,
		"NODE_EXTRA_CA_CERTS": Dir + "/" + companyFile,
		// The store inside a JDK would reach only the JDK of the image, and not those that
		// users install.
		"JAVA_TOOL_OPTIONS": "-Djavax.net.ssl.trustStore=" + Dir + "/" + javaFile,
	}
	for _, variable := range image {
		name, _, _ := strings.Cut(variable, "=")
		delete(env, name)
	}
	return env
}

// Command is the subcommand of the executable that runs Main.
const Command = "trust"

// Main runs `codehub trust COMPANY FOLDER` in the image of a workspace and returns the exit
// code. COMPANY is a file with the authorities of the company, and FOLDER gets the files of Dir.
func Main(args []string) int {
	err := errors.New("trust needs a file and a folder")
	if len(args) == 2 {
		err = install("/", args[0], args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "codehub trust:", err)
		return 1
	}
	return 0
}

func install(root, company, folder string) error {
	added, err := os.ReadFile(company)
	if err != nil {
		return err
	}
	var image []byte
	for _, name := range Bundles {
		if image, err = os.ReadFile(filepath.Join(root, name)); err == nil {
			break // one that is missing, or that the user may not read, is as none
		}
	}
	for name, content := range Files(image, added) {
		if err := os.WriteFile(filepath.Join(folder, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Replace puts the list of Dir, if there is one, where the distribution below root has its own.
// It needs root.
func Replace(root string) error {
	text, err := os.ReadFile(filepath.Join(root, BundlePath))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for i, name := range Bundles {
		name = filepath.Join(root, name)
		if _, err := os.Stat(name); i > 0 && err != nil {
			continue
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, text, 0o644)); err != nil {
			return err
		}
	}
	return nil
}
