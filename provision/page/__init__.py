"""The page "Which PyTorch and CUDA for my GPU and driver?": one HTML file that needs no server.

In: the catalog, the doctor's knowledge, perhaps an earlier page. Out: the bytes of the page. It
holds the resolver's own answers to every question that it can ask; its scripts look answers up and
show them. A pasted error they look up in a table of phrases, which the doctor's patterns give.

    questions --one for each GPU, driver, framework, CUDA, Python--> answers --> nodes --> site
                                                rows and sources --> facts -----------------^
                                          an earlier page's rows --> changes ---------------^
                                          the doctor's knowledge --> symptoms --------------^
"""
