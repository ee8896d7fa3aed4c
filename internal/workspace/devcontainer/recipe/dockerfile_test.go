package recipe

import (
	"slices"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, file string
		args       string
		want       string // "!": an error with the text
	}{
		{"one", "FROM debian:12\nRUN true", "", "debian:12"},
		{"case, blanks, comments", "\ufeff# syntax=docker/dockerfile:1\r\n\r\n \tfrom\t  a/b:1   As   X\r\n# FROM c\r\nrun true\r\n", "", "a/b:1"},
		{"stages", "FROM a AS One\nFROM one AS two\nCOPY --from=ONE /x /\nCOPY --from=0 /x /\nCOPY --chown=1:1 --from=b:2 /x /\nFROM scratch\nFROM a", "", "a b:2"},
		{"own name", "FROM a AS b\nCOPY --from=b /x /\nFROM b", "", "a b"},
		{"name as of later", "FROM b AS a\nFROM a AS c\nFROM c AS b\n", "", "b"},
		{"own name of FROM", "FROM evil AS evil\n", "", "evil"},
		{"continuation", "FROM \\\n# comment\n\n  # another\n a:\\\n1 \\\n AS x\nRUN a \\\n&& FROM evil\n", "", "a:1"},
		{"continuation without end", "FROM a \\\n", "", "a"},
		{"escaped escape", "FROM a\nRUN x \\\\\nFROM b\n", "", "!line 2: the end has two backslashes"},
		{"escaped blank", "FROM a\nRUN x \\\v\nFROM b\n", "", "!line 2: the end has two backslashes, or a special blank"},
		{"escaped blank of other alphabets", "FROM a\nRUN x\\\u00a0\\\ny", "", "!line 2: the end has"},
		{"escape directive", "# Escape = `\nFROM `\na\nRUN c:\\\nFROM b\n", "", "!line 1: another escape character"},
		{"escape in a later line", "\n# escape=`\nFROM a", "", "!line 2: another escape character"},
		{"escape after a directive", "# syntax=x\n# escape=`\nFROM a", "", "!line 2: another escape character"},
		{"backslash", "# syntax=x\n# escape=\\\nFROM a", "", "a"},
		{"escape in a comment", "FROM a\n# escape=`\nRUN x `\nFROM b", "", "!line 2: another escape character"},
		{"args", "ARG A=1 B=\"${A}2\" C='3'\nARG D=$B-$C\nFROM x:$D\nFROM x:${E:-e}\nFROM x:${A:+a}${E:+b}\nFROM ${E:-${A:-none}${B}}", "", "x:12-3 x:e x:a 112"},
		{"given args", "ARG A=1\nARG B\nFROM x:$A-${B}", "A=2 B=3", "x:2-3"},
		{"args of a stage", "FROM x\nARG A=1\nFROM y:$A", "A=2", "!line 3: A has no value"},
		{"args not declared", "FROM y:$A", "A=2", "!line 1: A has no value"},
		{"arg without value", "ARG A\nFROM x:$A", "", "!line 2: A has no value"},
		{"arg reset", "ARG A=1\nARG A\nFROM x:$A", "", "!line 3: A has no value"},
		{"arg of an unknown one", "ARG A=$B\nFROM x", "", "x"},
		{"used arg of an unknown one", "ARG A=$B\nFROM x:$A", "", "!line 2: A has no value"},
		{"arg that is empty", "ARG A=\nFROM x$A", "", "x"},
		{"image that is empty", "ARG A=\nFROM $A", "", "!line 2: the name of the image is empty"},
		{"stage by an arg", "ARG S=base\nFROM a AS base\nFROM $S", "", "a"},
		{"unused word", "ARG A=1\nFROM x:${A:-$B}", "", "x:1"},
		{"operators", "ARG A=1\nFROM x:${A#1}", "", "!line 2: codehub cannot resolve"},
		{"special", "FROM x$$", "", "!line 1: codehub cannot resolve"},
		{"unclosed", "ARG A=1\nFROM x:${A:-b", "", "!line 2: codehub cannot resolve"},
		{"platform", "FROM --platform=$BUILDPLATFORM a AS b", "", "a"},
		{"quotes of an arg", `ARG A=x"y"` + "\nFROM $A", "", "!line 1: ARG has to be"},
		{"escape in an arg", `ARG A="x\"` + "\nFROM $A", "", "!line 1: ARG has to be"},
		{"quotes of FROM", `FROM "a"`, "", `!line 1: "\"a\"" is not an image`},
		{"escape in FROM", `FROM a\b`, "", `!line 1: "a\\b" is not an image`},
		{"name of a stage", "FROM a AS $A", "A=b", `!line 1: "$A" cannot be the name`},
		{"values that grow", "ARG A=aaaaaaaaaa\n" + strings.Repeat("ARG A=$A$A\n", 40) + "FROM $A", "", "!line 42: A has no value"},
		{"value that is long", "FROM $A" + strings.Repeat("a", maxValue), "", "!longer than 4 KiB"},
		{"form of FROM", "FROM a b", "", "!line 1: FROM has to be"},
		{"empty FROM", "FROM", "", "!line 1: FROM has to be"},
		{"quotes of a flag", `FROM a` + "\n" + `COPY --fr"om"=evil / /`, "", "!line 2: a flag of COPY"},
		{"escape in a flag", `FROM a` + "\n" + `COPY --fr\om=evil / /`, "", "!line 2: a flag of COPY"},
		{"blank of other alphabets in a flag", "FROM a\nCOPY --chown=\u00e0--from=evil / /", "", "!line 2: a flag of COPY"},
		{"variable of a flag", "ARG A=b\nFROM a\nCOPY --from=$A / /", "", `!line 3: "$A" is not an image`},
		{"empty flag", "FROM a\nCOPY --from= / /", "", "!line 2: the name of the image is empty"},
		{"blank of other alphabets before a flag", "FROM a\nCOPY \u00a0--from=b / /\nCOPY --chown=1 \u0085--from=c / /", "", "a b c"},
		{"later stage", "FROM a\nCOPY --from=0 / /", "", "!line 2: there is no stage 0"},
		{"negative stage", "FROM a\nCOPY --from=-1 / /", "", "!line 2: there is no stage -1"},
		{"trigger", "FROM a\nOnBuild ADD http://b /", "", "!line 2: ONBUILD is not supported"},
		{"end of flags", "FROM a\nCOPY -- --from=b /", "", "!line 2: COPY -- needs BuildKit"},
		{"mount", "FROM a\nRUN --mount=type=bind,from=evil,target=/x true", "", "!line 2: RUN --mount needs BuildKit, which this server does not use"},
		{"network", "FROM a\nRUN --network=host true", "", "!line 2: RUN --network needs BuildKit"},
		{"link", "FROM a\nCOPY --link a b", "", "!line 2: COPY --link needs BuildKit"},
		{"here-document", "FROM a\nRUN <<EOF\nFROM b\nEOF", "", "!line 2: RUN with a here-document (<<) needs BuildKit"},
		{"here-document of COPY", "FROM a\nCOPY <<-'E' /x\nE", "", "!line 2: COPY with a here-document"},
		{"here-string", "FROM a\nRUN bash -c 'cat <<< x'", "", "a"},
		{"here-document by expansion", "FROM a\nRUN : '<<<' <${X:-}<\"CMD x\"\nFROM a AS evil\nCMD x\nCOPY --from=evil / /", "", "!line 2: RUN with a here-document"},
		{"lines of a here-document", "FROM a\nEOF", "", `!line 2: "EOF" is not an instruction`},
		{"blank of other alphabets after FROM", "FROM\u00a0a", "", "!is not an instruction"},
		{"ADD of a URL", "FROM a\nADD http://127.0.0.1/ /", "", "!line 2: ADD of a URL"},
		{"add", "FROM a\nadd\thttps://127.0.0.1/ /", "", "!ADD of a URL"},
		{"ADD on two lines", "FROM a\nAD\\\nD http://127.0.0.1/ /", "", "!ADD of a URL"},
		{"ADD with quotes", "FROM a\nADD h\"tt\"p:'//'127.0.0.1/ /", "", "!ADD of a URL"},
		{"ADD with a variable", "FROM a\nARG U=http://b\nADD $U /", "", "!ADD of a URL"},
		{"ADD in JSON", "FROM a\nADD [\"http:\\u002f/127.0.0.1/\", \"/\"]", "", "!ADD of a URL"},
		{"ADD with an escape", "FROM a\nADD --chown=1:1 http\\://127.0.0.1/ /", "", "!ADD of a URL"},
		{"ADD of an image", "FROM a\nADD --from=b / /", "", "!ADD --from needs BuildKit"},
		{"carriage return", "FROM a\nRUN x \\\r\r\nFROM b", "", "!carriage return"},
		{"empty", "", "", "!has no FROM"},
		{"no FROM", "RUN true", "", "!has no FROM"},
		{"large", "FROM a\n#" + strings.Repeat("x", maxDockerfile), "", "!more than 256 KiB"},
		{"many stages", strings.Repeat("FROM a\n", maxStages+1), "", "!more than 64 stages"},
		{"words of a default", "ARG A=\"a AS b\"\nFROM $A\nFROM b", "", `!line 2: "a AS b" is not an image`},
	} {
		args := map[string]string{}
		for arg := range strings.FieldsSeq(test.args) {
			name, value, _ := strings.Cut(arg, "=")
			args[name] = value
		}
		file, err := Read(test.file, args)
		if problem, fails := strings.CutPrefix(test.want, "!"); fails || err != nil {
			if !fails || err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("%s: %v, want %s", test.name, err, test.want)
			}
			continue
		}
		if got := strings.Join(file.Images, " "); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"FROM a": "FROM a\nLINES\n",
		"\uFEFF# syntax=docker/dockerfile:1\r\nfrom a as b\r\nRUN x \\\r\n  # comment\n\n  && y\n": "FROM a AS b\nLINES\nRUN x   && y\n",
		"ARG V=1\nFROM a:$V\nLABEL codehub.role=home\nlabel \\\n b=c\nRUN d":                       "ARG V=1\nFROM a:1\nLINES\nRUN d\n",
		"FROM --platform=linux/arm64 a  AS B\nFROM b\nMAINTAINER c":                                "FROM a AS b\nLINES\nFROM b\nLINES\n",
		"FROM a\nADD f.tar.gz [\"x\"] /":                                                           "FROM a\nLINES\nADD f.tar.gz [\"x\"] /\n",
		"FROM a\nRUN curl http://b \\":                                                             "FROM a\nLINES\nRUN curl http://b\n",
		"FROM a\nCOPY \u00a0--from=b\t--chown=1  c  d\u00a0\nCMD":                                  "FROM a\nLINES\nCOPY --from=b --chown=1 c  d\nCMD\n",
	} {
		if got, err := Read(file, nil); err != nil || got.Text("LINES\n") != want {
			t.Errorf("%q: %+v, %v, want\n%s", file, got, err, want)
		}
	}
	if lines := strings.Split(Trust([]byte("x")), "\n"); len(lines) != 3 || lines[0] != "COPY .codehub-authorities.crt /opt/codehub-trust/build.crt" || !strings.HasPrefix(lines[1], "ARG SSL_CERT_FILE=/opt/codehub-trust/build.crt NODE") {
		t.Errorf("%q", lines)
	}
	if lines := Trust(nil); lines != "" {
		t.Errorf("%q", lines)
	}
}

func FuzzRead(f *testing.F) {
	for _, file := range []string{
		"FROM a AS b\nCOPY --from=b / /\nCOPY --from=c / /\n", "# escape=`\nARG A=\"1\" B='2'\nFROM x:${A:-${B}} \\\n AS y\n", "FROM \\\n# c\n\n a\nRUN <<E\nCOPY \u00a0--from=0 a b\v\\",
	} {
		f.Add(file, "A", "1")
	}
	f.Fuzz(func(t *testing.T, text, name, value string) {
		args := map[string]string{name: value}
		file, err := Read(text, args)
		if err != nil {
			return
		}
		// The text for Docker names the same images, without variables.
		trusting := file.Text(Trust([]byte("x")))
		again, err := Read(trusting, nil)
		if err != nil && len(trusting) <= maxDockerfile || err == nil && (!slices.Equal(file.Images, again.Images) || again.Text("") != trusting) {
			t.Errorf("%v: %q, want %q", err, again, file)
		}
	})
}
