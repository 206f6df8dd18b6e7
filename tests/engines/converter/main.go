// Reads and writes lazy layers with the library of stargz-snapshotter 0.12.
//
// "write" converts a tar (standard input) to a layer (standard output), whose digests and annotations
// are JSON on standard error. "show" reads layers, each after its size in four bytes, and prints what
// the snapshotter's file system would show of each as a line of JSON, or why it refuses it.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	klauspost "github.com/klauspost/compress/zstd"
)

type zstd struct {
	*zstdchunked.Decompressor
	*zstdchunked.Compressor
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func write(format string, chunk int, first string) {
	tar, err := io.ReadAll(os.Stdin)
	check(err)
	annotations := map[string]string{}
	options := []estargz.Option{estargz.WithChunkSize(chunk)}
	if format == "zstd" {
		packer := &zstdchunked.Compressor{CompressionLevel: klauspost.SpeedDefault, Metadata: annotations}
		options = append(options, estargz.WithCompression(&zstd{new(zstdchunked.Decompressor), packer}))
	}
	if first != "" {
		options = append(options, estargz.WithPrioritizedFiles([]string{first}))
	}
	blob, err := estargz.Build(io.NewSectionReader(bytes.NewReader(tar), 0, int64(len(tar))), options...)
	check(err)
	_, err = io.Copy(os.Stdout, blob)
	check(err)
	check(blob.Close())
	annotations[estargz.TOCJSONDigestAnnotation] = blob.TOCDigest().String()
	check(json.NewEncoder(os.Stderr).Encode(map[string]interface{}{
		"diffID": blob.DiffID().String(), "annotations": annotations,
	}))
}

// As fs/layer/node.go and metadata/memory/reader.go make them of a row.
func seen(r *estargz.Reader, name string, e *estargz.TOCEntry) []interface{} {
	when, _ := time.Parse(time.RFC3339, e.ModTime3339)
	var device, chunks []interface{}
	var xattrs interface{}
	if len(e.Xattrs) > 0 {
		xattrs = e.Xattrs
	}
	if e.Type == "char" || e.Type == "block" {
		device = []interface{}{uint32(e.DevMajor), uint32(e.DevMinor)}
	}
	link := ""
	if e.Type == "symlink" {
		link = e.LinkName
	}
	size := int64(0)
	if e.Type == "reg" {
		size = e.Size
	}
	for at := int64(0); at < size; {
		c, ok := r.ChunkEntryForOffset(e.Name, at)
		if !ok || c.ChunkSize <= 0 {
			chunks = append(chunks, "none")
			break
		}
		digest := c.Digest
		if c.ChunkDigest != "" {
			digest = c.ChunkDigest
		}
		chunks = append(chunks, []interface{}{c.ChunkOffset, c.ChunkSize, digest})
		at = c.ChunkOffset + c.ChunkSize
	}
	return []interface{}{name, e.Stat().Mode().String(), uint32(e.UID), uint32(e.GID), when.Unix(),
		size, link, device, xattrs, e.NumLink, chunks}
}

func walk(r *estargz.Reader, name string, e *estargz.TOCEntry, found map[string]interface{}) {
	found[name] = seen(r, e.Name, e)
	e.ForeachChild(func(base string, child *estargz.TOCEntry) bool {
		walk(r, name+"/"+base, child, found)
		return true
	})
}

func show(blob []byte) (line interface{}) {
	defer func() {
		if err := recover(); err != nil {
			line = fmt.Sprint("panic: ", err)
		}
	}()
	r, err := estargz.Open(io.NewSectionReader(bytes.NewReader(blob), 0, int64(len(blob))),
		estargz.WithDecompressors(new(zstdchunked.Decompressor)))
	if err != nil {
		return err.Error()
	}
	if _, err := r.VerifyTOC(r.TOCDigest()); err != nil {
		return err.Error()
	}
	root, ok := r.Lookup("")
	if !ok {
		return "no root"
	}
	found := map[string]interface{}{}
	walk(r, "", root, found)
	return found
}

func main() {
	format := flag.String("format", "gzip", "gzip or zstd")
	chunk := flag.Int("chunk", 0, "bytes of a chunk; 0: the library's")
	first := flag.String("first", "", "a file that is fetched ahead")
	flag.Parse()
	if flag.Arg(0) == "write" {
		write(*format, *chunk, *first)
		return
	}
	in, out := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var size uint32
		if err := binary.Read(in, binary.LittleEndian, &size); err == io.EOF {
			return
		}
		blob := make([]byte, size)
		_, err := io.ReadFull(in, blob)
		check(err)
		check(out.Encode(show(blob)))
	}
}
